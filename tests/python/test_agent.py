"""`agent="auto"`: an agent is started for this user, outlives the trainer, and is found by the next one."""

import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile

import pytest
from conftest import BUILD, require_build, ROOT

import ckptd
from ckptd import agent as agents

TRAINER = """
import sys, torch, ckptd
model = torch.nn.Linear(2, 2)
ck = ckptd.Checkpointer([model], job="auto", agent="auto", storage=sys.argv[1], on_error="raise")
print(ck.restore(timeout=20), flush=True)
"""


def holder(path):
    """Process that listens at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.connect(path)
        return struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


@pytest.fixture
def user(tmp_path, monkeypatch):
    """Environment of a user without an agent; whatever was started is ended."""
    region = pathlib.Path(f"/dev/shm/ckptd-{os.getuid()}")
    require_build()
    if region.exists() or agents.answers("/run/ckptd/ckptd.sock"):
        pytest.skip("this user has an agent of its own here; its region would be shared")
    runtime = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-x-", dir="/tmp"))
    monkeypatch.delenv("CKPTD_SOCKET", raising=False)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("CKPTD_BIN", str(BUILD / "bin" / "ckptd"))
    monkeypatch.setenv("CKPTD_LIB", str(BUILD / "lib" / "libckpt.so"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}/client/python")
    yield tmp_path / "storage"
    path = str(agents.user_directory() / "ckptd.sock")
    if agents.answers(path):
        os.kill(holder(path), signal.SIGKILL)
    shutil.rmtree(region, ignore_errors=True)
    shutil.rmtree(runtime, ignore_errors=True)


def test_several_trainers_start_one_agent(user):
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", TRAINER.replace('"auto", agent', f'"auto-{index}", agent'), str(user)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(3)
    ]
    assert [job.communicate(timeout=60)[0] for job in jobs] == ["0\n"] * 3
    path = str(agents.user_directory() / "ckptd.sock")
    first = holder(path)
    assert agents.ensure() == path and holder(path) == first  # it outlives who started it, and is found again
    assert {folder.name for folder in user.iterdir()} >= {"auto-0", "auto-1", "auto-2"}


def test_an_agent_that_does_not_come_up_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("CKPTD_SOCKET", str(tmp_path / "s.sock"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("CKPTD_BIN", "/bin/false")
    monkeypatch.setattr(agents, "_DEADLINE", 0.3)
    with pytest.raises(ckptd.AgentUnreachable, match="does not answer"):
        agents.ensure()
    monkeypatch.delenv("CKPTD_BIN")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(agents, "__file__", str(tmp_path / "a" / "b" / "c" / "d" / "agent.py"))
    with pytest.raises(ckptd.AgentUnreachable, match="no program ckptd"):
        agents.ensure()


def test_who_is_answered_by_one_socket_is_answered_by_the_other(agent):
    """Trainers look for an agent at its own socket and call ckptctl next: an agent listens there last."""
    for _ in range(20):
        agent.kill()
        agent.start(pause=0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as operator:
            operator.connect(str(agent.sockets / "admin.sock"))
