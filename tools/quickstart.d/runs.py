"""Processes of the quick start: one agent with folders of its own, and trainers that report into files."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUILD = Path(os.environ.get("CKPTD_BUILD", ROOT / "build" / "release"))
BEGAN = float(os.environ.get("QUICKSTART_BEGAN", time.time()))


class Failed(Exception):
    """A scene did not go as it must; the text says what was seen."""


def say(text):
    print(f"[{time.time() - BEGAN:4.0f} s] {text}", flush=True)


def wait_for(what, seconds, condition, every=0.01):
    """The first true value of condition(); Failed after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(every)
    raise Failed(f"waited {seconds} s for {what}")


def children(pid):
    """All descendants: torchrun puts its workers into sessions of their own, so a process group is not enough."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            pass  # it ended meanwhile
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def kill_tree(process):
    """SIGKILL to a process and all its descendants: nobody gets to say goodbye."""
    for pid in [process.pid, *children(process.pid)] if process.poll() is None else []:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()


def toml(settings):
    """The text of a configuration: {"section.key": text or number}."""
    sections = {}
    for name, value in settings.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, []).append(f"{key} = {value}" if isinstance(value, int) else f'{key} = "{value}"')
    return "".join(f"[{section}]\n" + "\n".join(lines) + "\n" for section, lines in sections.items())


class Agent:
    """ckptd with its own sockets, region (in /dev/shm) and storage, all under one name.

    `settings`: more of its configuration, by "section.key". `prefix`: what its command line begins with.
    """

    def __init__(self, base, region_root=Path("/dev/shm"), storage=None, settings=None, prefix=()):
        self.base = base
        self.prefix = prefix
        self.storage = storage or base / "storage"
        # A socket's path has at most 107 characters, and nobody knows how deep this checkout lies.
        self.socket = Path(tempfile.mkdtemp(prefix="ckptd-", dir="/tmp")) / "ckptd.sock"
        self.region = region_root / f"ckptd-quickstart-{os.getpid()}-{base.name}"
        self.config = base / "ckptd.toml"
        self.process = None
        for folder in (self.storage, self.region):
            folder.mkdir(parents=True, exist_ok=True)
        self.region.chmod(0o700)
        self.config.write_text(toml({
            "agent.socket": self.socket, "agent.admin_socket": f"{self.socket.parent}/admin.sock",
            "region.dir": self.region, "storage.root": self.storage, "metrics.listen": "off", **(settings or {}),
        }))  # fmt: skip

    def start(self):
        log = open(self.base / "agent.log", "ab")
        began = time.monotonic()
        command = [*self.prefix, BUILD / "bin" / "ckptd", "--config", self.config]
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        wait_for(f"the agent (see {self.base}/agent.log)", 10, self._answers, every=0.002)
        return time.monotonic() - began

    def _answers(self):
        if self.process.poll() is not None:
            raise Failed(f"the agent ended with {self.process.returncode}, see {self.base}/agent.log")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def kill(self):
        self.process.kill()  # it has no children, and looking for some would give a flush the time to finish
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    def lose_region(self):
        shutil.rmtree(self.region)
        self.region.mkdir(mode=0o700)

    def remove(self):
        self.stop()
        shutil.rmtree(self.region, ignore_errors=True)
        shutil.rmtree(self.storage, ignore_errors=True)
        shutil.rmtree(self.socket.parent, ignore_errors=True)

    def ctl(self, *arguments):
        command = [BUILD / "bin" / "ckptctl", *arguments, "--agent", self.socket.parent / "admin.sock"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        return done.stdout + done.stderr

    def captured_steps(self):
        """Steps that the agent's log calls captured: sealed in memory, their flush is not over before it says so."""
        return [int(step) for step in re.findall(r"op=save.captured .*step=(\d+)", (self.base / "agent.log").read_text())]

    def steps(self, job, committed=True):
        """Steps of the job on storage; a step is committed when its manifest is there."""
        found = (self.storage / job).glob("step-*.a*")
        return sorted(int(p.name[5:15]) for p in found if not committed or (p / "manifest.json").exists())


class Run:
    """One training run: each launch() is an attempt; all attempts report into the same folder."""

    def __init__(self, out, ranks=1, agent=None, job=None):
        self.out, self.ranks, self.agent, self.job = out, ranks, agent, job
        self.process = None
        out.mkdir(parents=True, exist_ok=True)

    def launch(self, *extra):
        python = [sys.executable]
        if self.ranks > 1:
            python += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={self.ranks}",
                       "--max-restarts=1", "--monitor-interval=0.1"]
        self.process = self.start([*python, *self.script(*extra)], self.environment(self.agent))
        return self

    def script(self, *extra):
        job = ["--job", self.job] if self.job else []
        return [HERE / "train.py", "--out", self.out, f"--batch={8 // self.ranks}", *job, *extra]

    def start(self, command, environment, log="trainer.log"):
        log = open(self.out / log, "ab")
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                start_new_session=True)  # fmt: skip

    def environment(self, agent):
        threads = 1 if self.ranks > 1 else min(2, os.cpu_count())
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "OMP_WAIT_POLICY": "PASSIVE",  # spinning threads make a crawl of it when something else runs too
            "PYTHONPATH": str(ROOT / "client" / "python"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "CKPTD_LIB": str(BUILD / "lib" / "libckpt.so"),
            # torch 2.10's gloo meets the dead ranks' addresses when torchrun restarts on its own store.
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        if agent:
            environment["CKPTD_SOCKET"] = str(agent.socket)
        return environment

    def events(self, name, rank=0):
        path = self.out / f"events.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def wait_event(self, name, number=1, seconds=300):
        """The last of `number` events of this name on every rank; Failed when the trainer ends without them."""
        def seen():
            found = [self.events(name, rank) for rank in range(self.ranks)]
            if all(len(events) >= number for events in found):
                return found[0][number - 1]
            self.check()
        return wait_for(f"'{name}' of the trainer", seconds, seen)

    def check(self):
        """Failed when the trainer has ended."""
        if self.process.poll() is not None:
            raise Failed(f"the trainer ended with {self.process.returncode}, see {self.out}/trainer.log")

    def kill(self):
        if self.process:
            kill_tree(self.process)

    def ended(self):
        return self.process.poll() is not None

    def last_step(self, rank=0):
        path = self.out / f"loss.{rank}"
        lines = path.read_text().splitlines() if path.exists() else []
        return int(lines[-1].split()[0]) if lines else 0

    def finish(self, seconds=600):
        try:
            status = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            kill_tree(self.process)
            raise Failed(f"the trainer did not end in {seconds} s, see {self.out}/trainer.log") from None
        if status:
            raise Failed(f"the trainer ended with {status}, see {self.out}/trainer.log")
        return self

    def losses(self, rank):
        """All (step, loss) ever seen, those of steps done twice too."""
        return [tuple(line.split()) for line in (self.out / f"loss.{rank}").read_text().splitlines()]

    def differences(self, reference):
        """What is not bit for bit as in the undisturbed run; empty when all is."""
        found = []
        for rank in range(self.ranks):
            wanted, got = dict(reference.losses(rank)), self.losses(rank)
            found += [f"rank {rank}: loss of step {step}" for step, loss in got if wanted.get(step) != loss]
            found += [f"rank {rank}: step {step} is missing" for step in wanted.keys() - dict(got).keys()]
            tensors = [json.loads((run.out / f"final.{rank}.json").read_text()) for run in (reference, self)]
            names = tensors[0].keys() | tensors[1].keys()
            found += [f"rank {rank}: {name}" for name in sorted(names) if tensors[0].get(name) != tensors[1].get(name)]
        return found
