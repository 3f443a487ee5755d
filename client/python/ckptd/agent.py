"""Finding an agent, and starting one for this user where none answers: nobody needs root to try ckptd.

The agent is `$CKPTD_BIN`, else `ckptd` on the PATH, else the build tree's. It runs in a session of its own, so that it
outlives the trainer that started it. Several ranks may start one at once: the agent's own lock lets one win, and all
wait for whoever answers. Where the node has an agent that is away for a moment, it is waited for: another one knows
nothing of the jobs.
"""

from __future__ import annotations

import errno
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
_PATIENCE = 10.0  # seconds; as the connect_timeout of a restore
_SYSTEM_SOCKET = "/run/ckptd/ckptd.sock"


def user_directory() -> pathlib.Path:
    """Where the per-user agent has its sockets."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return pathlib.Path(runtime) / "ckptd" if runtime else pathlib.Path(f"/tmp/ckptd-{os.getuid()}")


def sockets() -> list[str]:
    """Where an agent may answer, best first."""
    named = os.environ.get("CKPTD_SOCKET")
    system = os.environ.get("CKPTD_SYSTEM_SOCKET") or _SYSTEM_SOCKET  # tests have one of their own
    return [named] if named else [system, str(user_directory() / "ckptd.sock")]


def answers(path: str) -> bool:
    """Whether an agent accepts connections at `path`."""
    return _knock(path) == 0


def _knock(path: str) -> int:
    """0 or an errno."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        try:
            return probe.connect_ex(path)
        except OSError as failed:
            return failed.errno or errno.EINVAL


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


def ensure(storage: str | None = None, patience: float = _PATIENCE, joined: str | None = None) -> str:
    """Socket of an agent that answers; one is started for this user if none does.

    storage: folder for its checkpoints (default ~/.local/share/ckptd); only counts for an agent started here.
    patience: seconds that an agent of this node may be away before the user's own is taken.
    joined: the socket of the agent that this process joined before. It stays with that one.
    Raises AgentUnreachable, with the end of the agent's log, when it does not come up.
    """
    found = joined if joined and (joined != sockets()[-1] or answers(joined)) else None
    if not (found or joined):
        found = _find(patience)
    if found:
        return found
    directory = user_directory()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    log = directory / "agent.log"
    process = _start(directory, log, storage)
    return _wait(sockets()[-1], process, log)


def _find(patience: float) -> str | None:
    """Who answers. A later one only when no earlier one comes back within `patience`; None: nobody does."""
    deadline = time.monotonic() + patience
    paths = sockets()
    while True:
        waits = time.monotonic() < deadline
        for path in paths:
            error = _knock(path)
            if error == 0:
                return path
            if waits and path != paths[-1] and _may_come_back(path, error):
                break
        else:
            return None
        select.select([], [], [], 0.05)


def _may_come_back(path: str, error: int) -> bool:
    """Whether an agent runs there, or did: systemd keeps the folder while it starts the next."""
    if error in (errno.ECONNREFUSED, errno.EAGAIN):
        return True
    return error == errno.ENOENT and pathlib.Path(path).parent.exists()


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
