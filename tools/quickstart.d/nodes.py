"""Nodes for the quick start: each a network namespace with an agent, a region and a disk of its own, on one machine.

        namespace ckptd-PID-net:   ─┬──────────┬──────────┬─ bridge
                                    │veth      │veth      │veth
        namespaces ckptd-PID-n1 ... n1         n2         n3     10.99.0.1, 10.99.0.2, ...

The bridge lies in a namespace too: nothing of this machine's own network (addresses, routes, firewall) is touched.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from runs import BUILD, Agent, Failed, say, wait_for

PORT = 9465
CLUSTER = "quickstart"
OTHERWISE = """Or: --no-namespaces, which puts all nodes on loopback addresses (127.x), and their agents without TLS
(tls = "plaintext-on-loopback")."""
DECIDE_SECONDS = 5  # a restore waits so long for the agents that are lost


def command(*words):
    """Its output; Failed with its last line when it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        told = (done.stderr.strip() or done.stdout.strip() or f"ended with {done.returncode}").splitlines()[-1]
        raise Failed(f"{' '.join(map(str, words))}: {told}")
    return done.stdout


class Namespaces:
    """A network of namespaces; gone at the end, with whatever still runs in it."""

    interface = "eth0"

    def __init__(self):
        self._names = []
        self._hub = self._full("net")

    def __enter__(self):
        self._check()
        try:
            command("ip", "netns", "add", self._hub)
            self._names.append("net")
            command("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
            command("ip", "-n", self._hub, "link", "set", "bridge", "up")
        except Failed as failed:
            self.__exit__()
            raise Failed(f"network namespaces do not work here ({failed}).\n{OTHERWISE}") from None
        return self

    def __exit__(self, *_):
        for name in reversed(self._names[:]):
            self.remove(name)

    def _check(self):
        if os.geteuid() != 0:
            raise Failed(f"namespaces need root. Next: run it as root or with sudo.\n{OTHERWISE}")
        if shutil.which("ip") is None:
            raise Failed(f"there is no 'ip'. Next: install iproute2 (tools/quickstart does).\n{OTHERWISE}")

    @staticmethod
    def _full(name):
        return f"ckptd-{os.getpid()}-{name}"

    def address(self, number):
        return f"10.99.0.{number}"

    def prefix(self, name):
        return ("ip", "netns", "exec", self._full(name))

    def port(self):
        return 29500

    def add(self, name, number):
        full = self._full(name)
        command("ip", "netns", "add", full)
        self._names.append(name)
        pair = ("type", "veth", "peer", "name", self.interface, "netns", full)
        command("ip", "-n", self._hub, "link", "add", name, *pair)
        command("ip", "-n", self._hub, "link", "set", name, "master", "bridge", "up")
        command("ip", "-n", full, "address", "add", f"{self.address(number)}/24", "dev", self.interface)
        for device in ("lo", self.interface):
            command("ip", "-n", full, "link", "set", device, "up")

    def remove(self, name):
        """The namespace with everything that runs in it."""
        full = self._full(name)
        for pid in command("ip", "netns", "pids", full).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                pass
        command("ip", "netns", "del", full)
        self._names.remove(name)

    def look(self, name):
        return f"ip netns exec {self._full(name)} ip address"

    def end(self):
        """Command lines that remove what was left."""
        return [f"ip netns del {self._full(name)}" for name in self._names]


class Loopback:
    """No namespaces: all nodes share this machine's loopback network, each has an address of its own there."""

    interface = "lo"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def address(self, number):
        pid = os.getpid()  # tests run side by side
        return f"127.{1 + pid // 250 % 250}.{1 + pid % 250}.{number}"

    def prefix(self, name):
        return ()

    def port(self):
        """One that is free now."""
        with socket.socket() as probe:
            probe.bind((self.address(1), 0))
            return probe.getsockname()[1]

    def add(self, name, number):
        pass

    def remove(self, name):
        pass

    def look(self, name):
        return "ss -tlnp"

    def end(self):
        return []


class Authority:
    """What `ckptctl certs` makes, for the nodes of one cluster."""

    def __init__(self, folder, names):
        self.folder = folder
        tool = BUILD / "bin" / "ckptctl"
        command(tool, "certs", "init", "--cluster", CLUSTER, "--dir", folder)
        command(tool, "certs", "node", *names, "--dir", folder)

    def install(self, name, disk):
        """The three files of a node on its disk; the settings that name them."""
        for path, to in (("ca.pem", "ca.pem"), (f"nodes/{name}.key", "node.key"), (f"nodes/{name}.pem", "node.pem")):
            shutil.copy(self.folder / path, disk / to)
        return {"peers.tls": "mutual", "peers.tls_ca": disk / "ca.pem", "peers.tls_cert": disk / "node.pem",
                "peers.tls_key": disk / "node.key"}  # fmt: skip


class Node(Agent):
    """An agent and all that is a node's own."""

    def __init__(self, cluster, number, settings):
        self.name = cluster.names[number - 1]
        self.number, self.network = number, cluster.network
        self.address = self.network.address(number)
        self.disk = cluster.folder / self.name / "disk"
        self.disk.mkdir(parents=True)
        self.network.add(self.name, number)
        prefix = self.network.prefix(self.name)
        super().__init__(cluster.folder / self.name, storage=cluster.storage, prefix=prefix, settings={
            "agent.node_name": self.name, "agent.state_dir": self.disk, "agent.decide_timeout": f"{DECIDE_SECONDS}s",
            "peers.members": cluster.members, "peers.address": self.address, "peers.cluster": CLUSTER,
            **cluster.tls(self.name, self.disk), **settings,
        })  # fmt: skip
        self.lost = False

    def lose(self):
        """SIGKILL to its agent, then what was the node's alone is gone: memory, disk, network."""
        self.lost = True
        self.kill()
        self.network.remove(self.name)
        for folder in (self.region, self.disk, self.socket.parent):
            shutil.rmtree(folder)

    def remove(self):
        if self.process and self.process.poll() is None:
            self.kill()  # nobody waits for what it would still write
        for folder in (self.region, self.disk, self.socket.parent):
            shutil.rmtree(folder, ignore_errors=True)

    def status(self):
        return json.loads(self.ctl("status", "-o", "json"))

    def holds(self, job, rank):
        """Whether a copy of another node's rank lies here."""
        return any((self.region / job).glob(f"peer-{rank:05d}/slot-*"))


class Cluster:
    """Nodes n1, n2, ... with one storage; the last is the spare. Use it in a with statement."""

    def __init__(self, folder, count, network, settings):
        self.folder, self.network = folder, network
        self.names = [f"n{number}" for number in range(1, count + 1)]
        self.storage = folder / "storage"
        self.members = "; ".join(f"{name} address={network.address(i)}:{PORT}" for i, name in enumerate(self.names, 1))
        self._settings, self._authority = settings, None
        self.nodes = []
        self.kept = False

    def __enter__(self):
        self.folder.mkdir(parents=True)
        try:
            self.network.__enter__()
            if isinstance(self.network, Namespaces):
                self._authority = Authority(self.folder / "certs", self.names)
            for number in range(1, len(self.names) + 1):
                self.nodes.append(Node(self, number, self._settings))
            for node in self.nodes:
                node.start()
            wait_for("each agent to answer each other's", 30, self._linked, every=0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.kept:
            return
        for node in self.nodes:
            if not node.lost:
                node.remove()
        shutil.rmtree(self.storage, ignore_errors=True)
        self.network.__exit__()

    def tls(self, name, disk):
        if self._authority:
            return self._authority.install(name, disk)
        return {"peers.tls": "plaintext-on-loopback"}

    def _linked(self):
        """All listen, and answer for the members that they know."""
        return all(node.status()["agent"]["peers"]["linked"] for node in self.nodes)

    def holder(self, job, rank, owner):
        """The node that holds the copy of this rank, which runs on `owner`."""
        found = [node for node in self.nodes if not node.lost and node is not owner and node.holds(job, rank)]
        if not found:
            raise Failed(f"no node holds a copy of rank {rank}")
        return found[0]

    def describe(self):
        tls = "mutual TLS (ckptctl certs)" if self._authority else "NO TLS (--no-namespaces: plaintext-on-loopback)"
        places = "network namespaces" if self._authority else "loopback addresses"
        first, last = self.nodes[0], self.nodes[-1]
        say(f"  agents {first.name} to {last.name} on {places} {first.address} to {last.address}; {tls}")
        say(f"  {last.name} is the spare")
