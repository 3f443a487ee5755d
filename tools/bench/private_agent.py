"""An agent for one benchmark: sockets and region in folders of its own, gone afterwards."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))

from ckptd import agent as agents  # noqa: E402

_START_SECONDS = 30
_PORT = 9465
_NO_STEP = 1_000_000  # that a benchmark comes to


@dataclass(frozen=True)
class Node:
    """One of a cluster on the loopback: its name, its address, and all members as peers.members has them."""

    name: str
    address: str
    members: str

    def config(self) -> str:
        """Two copies of each step in memory, over plain TCP; none goes to storage."""
        return (
            f'[peers]\nmembers = "{self.members}"\naddress = "{self.address}"\ntls = "plaintext-on-loopback"\n'
            f'copies = 2\nbulk = "tcp"\nbulk_network = "trusted"\n[durability]\nflush_every = {_NO_STEP}\n'
        )


def cluster(count: int) -> list[Node]:
    """Nodes at loopback addresses of this process's own."""
    mine = os.getpid() // 250 % 250 + 1, os.getpid() % 250 + 1
    names = [chr(ord("a") + number) for number in range(count)]
    addresses = {name: f"127.{mine[0]}.{mine[1]}.{10 + number}" for number, name in enumerate(names)}
    members = "; ".join(f"{name} address={address}:{_PORT}" for name, address in addresses.items())
    return [Node(name, addresses[name], members) for name in names]


class PrivateAgent:
    """Runs until `close`. build: a build tree; storage: a folder on the disk that shall be measured; node: of a cluster.

    SystemExit with the agent's log when it does not start.
    """

    def __init__(self, build: pathlib.Path, storage: pathlib.Path, node: Node | None = None) -> None:
        self._region = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-bench-", dir="/dev/shm"))
        self._sockets = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-bench-", dir="/tmp"))
        self.socket = f"{self._sockets}/s"
        config = self._sockets / "ckptd.toml"
        named = f'node_name = "{node.name}"\n' if node else ""
        config.write_text(
            f'[agent]\nsocket = "{self.socket}"\nadmin_socket = "off"\n{named}[region]\ndir = "{self._region}/r"\n'
            f'[storage]\nroot = "{storage}"\n[metrics]\nlisten = "off"\n' + (node.config() if node else "")
        )
        log = open(self._sockets / "log", "wb")
        self._process = subprocess.Popen([build / "bin" / "ckptd", "--config", config], stdout=log, stderr=log)
        try:
            self._wait_until_it_answers()
        except BaseException:
            self.close()
            raise

    def _wait_until_it_answers(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not agents.answers(self.socket):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit((self._sockets / "log").read_text() or "ckptd does not answer")
            time.sleep(0.01)

    def close(self) -> None:
        """Ends it at once; what it wrote to storage stays."""
        self._process.kill()
        self._process.wait()
        for folder in (self._region, self._sockets):
            shutil.rmtree(folder, ignore_errors=True)
