"""A ckptd of these tests' own: sockets, memory and storage in folders that are gone afterwards."""

from __future__ import annotations

import json
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from typing import Any

from child import end_with_parent
from installation import Installation
from sizes import SLOTS

IN_MEMORY_ONLY = 1_000_000  # flush_every: storage gets what is asked for, and takes no part in what is measured
_START_SECONDS = 30.0


class Agent:
    """Runs from `start` on. A context manager: killed at the end, its folders removed.

    memory: a folder on a tmpfs; storage: an empty folder on a disk, of which the caller disposes.
    """

    def __init__(
        self, found: Installation, memory: pathlib.Path, storage: pathlib.Path, log: Any,
        flush_every: int = IN_MEMORY_ONLY,
    ) -> None:  # fmt: skip
        self._program, self._log, self.storage = found.agent, log, storage
        self._sockets = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-gpu-", dir="/tmp"))  # a socket's path is short
        self.region = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-gpu-", dir=memory))
        self.socket = str(self._sockets / "s")
        self._process: subprocess.Popen[bytes] | None = None
        self._config = self._sockets / "ckptd.toml"
        self._config.write_text(
            f'[agent]\nsocket = {json.dumps(self.socket)}\nadmin_socket = "off"\n'
            f"[region]\ndir = {json.dumps(str(self.region))}\nslots = {SLOTS}\npopulate_threads = 8\n"
            f"[storage]\nroot = {json.dumps(str(storage))}\n[retention]\nkeep_last = 1\n"
            f'[durability]\nflush_every = {flush_every}\n[metrics]\nlisten = "off"\n'
        )

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for folder in (self._sockets, self.region):
            shutil.rmtree(folder, ignore_errors=True)

    def start(self) -> float:
        """Seconds until it answers. RuntimeError when it ends instead, or does not answer; the log says why."""
        began = time.monotonic()
        command = [self._program, "--config", self._config]
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, preexec_fn=end_with_parent
        )
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - began > _START_SECONDS:
                raise RuntimeError("the agent does not start; children.log says why")
            time.sleep(0.002)
        return time.monotonic() - began

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def lose_region(self) -> None:
        """As after a reboot. It must not run."""
        shutil.rmtree(self.region)
        self.region.mkdir(mode=0o700)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.settimeout(1.0)
            try:
                probe.connect(self.socket)
            except OSError:
                return False
        return True
