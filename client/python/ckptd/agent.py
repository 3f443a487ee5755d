"""Finding an agent, and starting one for this user where none answers: nobody needs root to try ckptd.

The agent is `$CKPTD_BIN`, else `ckptd` on the PATH, else the build tree's. It runs in a session of its own, so that it
outlives the trainer that started it. Several ranks may start one at once: the agent's own lock lets one win, and all
wait for whoever answers.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import shutil
import socket
import subprocess
import time

from . import _errors

_DEADLINE = 10.0  # seconds; an agent starts in under 0.1
_SYSTEM_SOCKET = "/run/ckptd/ckptd.sock"


def user_directory() -> pathlib.Path:
    """Where the per-user agent has its sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return pathlib.Path(runtime) / "ckptd" if runtime else pathlib.Path(f"/tmp/ckptd-{os.getuid()}")


def sockets() -> list[str]:
    """Where an agent may answer, best first."""
    named = os.environ.get("CKPTD_SOCKET")
    return [named] if named else [_SYSTEM_SOCKET, str(user_directory() / "ckptd.sock")]


def answers(path: str) -> bool:
    """Whether an agent accepts connections at `path`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def program(name: str = "ckptd") -> str:
    """Path of `ckptd` or `ckptctl`. AgentUnreachable, naming where it was looked for, when there is none."""
    override = os.environ.get("CKPTD_BIN")
    if override:
        return override if name == "ckptd" else str(pathlib.Path(override).with_name(name))
    found = shutil.which(name)
    if found:
        return found
    root = pathlib.Path(__file__).resolve().parents[3]
    for preset in ("release", "dev"):
        path = root / "build" / preset / "bin" / name
        if path.exists():
            return str(path)
    raise _errors.make("AGENT_UNREACHABLE", f"no program {name}: not in CKPTD_BIN, PATH or {root}/build")


def ensure(storage: str | None = None) -> str:
    """Socket of an agent that answers; one is started for this user if none does.

    storage: folder for its checkpoints (default ~/.local/share/ckptd); only counts for an agent started here.
    Raises AgentUnreachable, with the end of the agent's log, when it does not come up.
    """
    for path in sockets():
        if answers(path):
            return path
    directory = user_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = directory / "agent.log"
    process = _start(directory, log, storage)
    return _wait(sockets()[-1], process, log)


def _start(directory: pathlib.Path, log: pathlib.Path, storage: str | None) -> subprocess.Popen[bytes]:
    command = [program(), "--user"]
    settings = _settings(storage)
    if settings:
        config = directory / f"auto-{os.getpid()}.toml"
        config.write_text(settings)
        command += ["--config", str(config)]
    with open(log, "ab") as output:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True, close_fds=True
        )


def _settings(storage: str | None) -> str:
    """Configuration for what differs from the per-user defaults. JSON strings are TOML strings."""
    named = os.environ.get("CKPTD_SOCKET")
    text = ""
    if named:
        admin = str(pathlib.Path(named).with_name("admin.sock"))
        text += f"[agent]\nsocket = {json.dumps(named)}\nadmin_socket = {json.dumps(admin)}\n"
    if storage:
        text += f"[storage]\nroot = {json.dumps(os.path.abspath(storage))}\n"
    return text


def _wait(path: str, process: subprocess.Popen[bytes], log: pathlib.Path) -> str:
    """Until somebody answers: our process or, when it lost the race for the region, the winner."""
    deadline = time.monotonic() + _DEADLINE
    while time.monotonic() < deadline:
        if answers(path):
            return path
        select.select([], [], [], 0.01)
    process.poll()  # reaps it if it ended
    tail = log.read_text(errors="replace")[-400:] if log.exists() else ""
    raise _errors.make("AGENT_UNREACHABLE", f"the agent started for this user does not answer at {path}: {tail!r}")
