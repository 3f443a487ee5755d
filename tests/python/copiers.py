"""The copiers of one agent: tests run beside each other, and each may have some."""

import contextlib
import os
import pathlib
import signal
import time

MARK = "CUDA_TEST_AGENT"  # in the environment of an agent and its trainers; the agent hands CUDA_* to its copiers


def copiers(agent=None):
    """Their process ids. agent: what its mark says; else this process's own."""
    wanted = f"{MARK}={agent or os.environ[MARK]}".encode()
    found = []
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            named = (folder / "comm").read_text() == "ckptd-copier\n"
            if named and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def kill_copiers():
    """Those of this process's agent."""
    found = copiers()
    assert found, "no copier to kill"
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def gone(agent, deadline=5.0):
    """Whether every copier of `agent` ends soon."""
    end = time.monotonic() + deadline
    while copiers(agent) and time.monotonic() < end:
        time.sleep(0.01)
    return not copiers(agent)
