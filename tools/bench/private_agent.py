"""An agent for one benchmark: sockets and region in folders of its own, gone afterwards."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))

from ckptd import agent as agents  # noqa: E402

_START_SECONDS = 30


class PrivateAgent:
    """Runs until `close`. build: a build tree; storage: a folder on the disk that shall be measured.

    SystemExit with the agent's log when it does not start.
    """

    def __init__(self, build: pathlib.Path, storage: pathlib.Path) -> None:
        self._region = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-bench-", dir="/dev/shm"))
        self._sockets = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-bench-", dir="/tmp"))
        self.socket = f"{self._sockets}/s"
        config = self._sockets / "ckptd.toml"
        config.write_text(
            f'[agent]\nsocket = "{self.socket}"\nadmin_socket = "off"\n[region]\ndir = "{self._region}/r"\n'
            f'[storage]\nroot = "{storage}"\n[metrics]\nlisten = "off"\n'
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
