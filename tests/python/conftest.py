"""Fixtures: an agent of its own for each test that needs one; nothing is shared with agents of this machine."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "client" / "python"))
sys.path.insert(0, str(ROOT / "tests" / "python"))

from ckptd import agent as agents  # noqa: E402
from copiers import MARK  # noqa: E402


def build_folder():
    """The build tree under test: $CKPTD_BUILD, else the newest preset that has an agent."""
    if os.environ.get("CKPTD_BUILD"):
        return pathlib.Path(os.environ["CKPTD_BUILD"])
    found = [path.parents[1] for path in ROOT.glob("build/*/bin/ckptd")]
    return max(found, key=lambda path: (path / "bin" / "ckptd").stat().st_mtime, default=ROOT / "build" / "dev")


BUILD = build_folder()


def require_build():
    """Skips the test where nothing was built; a build that was named and is not there fails it."""
    if (BUILD / "bin" / "ckptd").exists() and (BUILD / "lib" / "libckpt.so").exists():
        return
    told = f"no agent or library in {BUILD}: tools/build first"
    pytest.fail(told) if os.environ.get("CKPTD_BUILD") else pytest.skip(told)


class Agent:
    """One ckptd with sockets, region and storage under folders of its own."""

    def __init__(self, base):
        self.base = base
        self.storage = base / "storage"
        self.sockets = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-t-", dir="/tmp"))  # a socket's path is short
        self.socket = self.sockets / "ckptd.sock"
        self.mark = self.sockets.name  # of its copiers
        self.region = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-t-", dir="/dev/shm"))
        self.storage.mkdir()
        self.config = base / "ckptd.toml"
        self.config.write_text(
            f'[agent]\nsocket = "{self.socket}"\nadmin_socket = "{self.sockets}/admin.sock"\n'
            f'[region]\ndir = "{self.region}"\n[storage]\nroot = "{self.storage}"\n[metrics]\nlisten = "off"\n'
        )
        self.process = None

    def start(self, *, pause=0.005, **environment):
        """Until it answers, asked every `pause` seconds."""
        log = open(self.base / "agent.log", "ab")
        command = [BUILD / "bin" / "ckptd", "--config", self.config]
        marked = {**os.environ, MARK: self.mark, **environment}
        self.process = subprocess.Popen(command, stdout=log, stderr=log, env=marked)
        deadline = time.monotonic() + 10
        while not agents.answers(str(self.socket)):
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, "the agent does not answer: " + self.log()
            time.sleep(pause)
        return self

    def kill(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()

    def lose_region(self):
        """As after a reboot."""
        shutil.rmtree(self.region)
        self.region.mkdir(mode=0o700)

    def log(self):
        return (self.base / "agent.log").read_text(errors="replace")[-3000:]

    def environment(self, **more):
        """For trainers."""
        return {
            **os.environ,
            "CKPTD_SOCKET": str(self.socket),
            MARK: self.mark,
            "CKPTD_LIB": str(BUILD / "lib" / "libckpt.so"),
            "PYTHONPATH": f"{ROOT}/client/python:{ROOT}/tests/python",
            "OMP_NUM_THREADS": "1",
            # torchrun's restart on its shared store meets the addresses of the dead ranks (torch 2.10, gloo).
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
            **more,
        }

    def remove(self):
        self.kill()
        for folder in (self.sockets, self.region):
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """A running agent; trainers in this process find it and the library of the same build."""
    require_build()
    running = Agent(tmp_path)
    monkeypatch.setenv("CKPTD_SOCKET", str(running.socket))
    monkeypatch.setenv("CKPTD_LIB", str(BUILD / "lib" / "libckpt.so"))
    yield running.start()
    running.remove()


def pytest_addoption(parser):
    """For the matrix."""
    night = bool(os.environ.get("CKPTD_NIGHTLY"))
    parser.addoption("--kills", type=int, default=20 if night else 1, help="kills of each row of the matrix")
    parser.addoption("--all-rules", action="store_true", default=night, help="every row without each of its rules")
    seed = os.environ.get("CKPTD_SEED") or str(int.from_bytes(os.urandom(4), "little"))
    os.environ["CKPTD_SEED"] = seed  # the workers of pytest-xdist draw the same
    parser.addoption("--seed", default=seed, help="what is drawn; else $CKPTD_SEED, else random")


def pytest_configure(config):
    config.addinivalue_line("markers", "night: long, and of no promise to users; not by day ($CKPTD_NIGHTLY)")


def pytest_collection_modifyitems(config, items):
    if not os.environ.get("CKPTD_NIGHTLY"):
        by_night = [item for item in items if item.get_closest_marker("night")]
        items[:] = [item for item in items if item not in by_night]
        config.hook.pytest_deselected(items=by_night)


def pytest_report_header(config):
    return f"matrix: --seed {config.getoption('--seed')}"


def pytest_terminal_summary(terminalreporter, exitstatus, config):
    if exitstatus:
        terminalreporter.write_line(f"matrix: again with --seed {config.getoption('--seed')}")
