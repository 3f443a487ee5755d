"""`agent="auto"`: an agent is started for this user, outlives the trainer, and is found by the next one. And which of
two agents a trainer goes to."""

import os
import pathlib
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import pytest
import torch
from conftest import Agent, BUILD, require_build, ROOT

import ckptd
from ckptd import agent as agents
from ckptd.torch._link import link

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
    if region.exists():
        pytest.skip("this user has an agent of its own here; its region would be shared")
    runtime = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-x-", dir="/tmp"))
    monkeypatch.delenv("CKPTD_SOCKET", raising=False)
    monkeypatch.setenv("CKPTD_SYSTEM_SOCKET", str(tmp_path / "no" / "ckptd.sock"))
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


@pytest.fixture
def node(user, tmp_path, monkeypatch):
    """The node's agent: not started yet, its folder is there."""
    base = tmp_path / "node"
    base.mkdir()
    running = Agent(base)
    monkeypatch.setenv("CKPTD_SYSTEM_SOCKET", str(running.socket))
    yield running
    running.remove()


def back(node, seconds=0.7):
    """Starts it `seconds` from now, as systemd does."""
    timer = threading.Timer(seconds, node.start)
    timer.start()
    return timer


def trained(steps, **options):
    """Saves until so many steps are durable. Returns what restore() did, and the last step."""
    with ckptd.Checkpointer([torch.nn.Linear(2, 2)], job="j", **options) as checkpointer:
        start = last = checkpointer.restore(timeout=30)
        deadline = time.monotonic() + 20
        while steps:
            assert time.monotonic() < deadline, checkpointer.dropped
            last += 1
            save = checkpointer.save(last)
            if save.dropped_because is None and save.durable(20):  # its memory is prepared at first
                steps -= 1
            else:
                select.select([], [], [], 0.05)
    return start, last


def test_a_restart_of_the_nodes_agent_is_waited_for(node, monkeypatch):
    monkeypatch.setenv("CKPTD_SYSTEM_SOCKET", "/nonexistent/ckptd.sock")
    left = agents.ensure()  # of an earlier run; it lives for ever
    monkeypatch.setenv("CKPTD_SYSTEM_SOCKET", str(node.socket))
    node.start()
    begun, last = trained(2)
    assert begun == 0
    node.kill()
    timer = back(node)
    begun, more = trained(1)
    assert begun == last  # not 0: it is durable
    timer.join()
    node.kill()
    timer = back(node)
    assert trained(0, agent="auto") == (more, more)
    timer.join()
    assert agents.answers(left)


def test_auto_waits_for_the_nodes_agent_and_starts_none(node):
    timer = back(node)
    assert agents.ensure() == str(node.socket)
    timer.join()
    assert not agents.answers(str(agents.user_directory() / "ckptd.sock"))


def test_auto_starts_one_at_once_where_the_node_has_none(user):
    begun = time.monotonic()
    assert agents.ensure(patience=60) == str(agents.user_directory() / "ckptd.sock")
    assert time.monotonic() - begun < 20


def test_auto_starts_one_where_the_nodes_agent_stays_away(node):
    begun = time.monotonic()
    own = str(agents.user_directory() / "ckptd.sock")
    assert agents.ensure(patience=0.5) == own
    assert time.monotonic() - begun >= 0.5
    node.start()
    assert agents.ensure(joined=own) == own  # who joined it stays with it
    node.kill()
    assert agents.ensure(joined=str(node.socket)) == str(node.socket)


def test_dcp_stays_with_the_agent_that_it_found(node):
    node.start()
    held = link("j", 0, 1, "auto", None)
    node.kill()
    assert link("j", 0, 1, "auto", None, 0.2) is held
    held.close(0)


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
