"""`ckptctl status` as objects."""

from __future__ import annotations

import json
import pathlib
import subprocess
from types import SimpleNamespace

from . import _errors, agent


def status(job: str | None = None, *, socket: str | None = None) -> SimpleNamespace:
    """What the agent of this node knows: the fields of `ckptctl status -o json`, as attributes; lists stay lists.

    job: only that one. socket: the agent's trainer socket (its admin socket lies beside it). Raises AgentUnreachable or
    NotFound.
    """
    result = run_ctl("status", *([job] if job else []), "-o", "json", socket=socket)
    if result.returncode in (0, 1) and result.stdout.startswith("{"):  # 1: the agent is not healthy, and says why
        return json.loads(result.stdout, object_hook=lambda fields: SimpleNamespace(**fields))
    raise _failure(result)


def ctl(*arguments: str, socket: str | None = None) -> str:
    """What `ckptctl` prints. Raises AgentUnreachable, NotFound or RestoreError with its sentence when it fails."""
    result = run_ctl(*arguments, socket=socket)
    if result.returncode:
        raise _failure(result)
    return result.stdout


def run_ctl(*arguments: str, socket: str | None) -> subprocess.CompletedProcess[str]:
    """`ckptctl` against the agent of this node, or the one whose trainer socket is given.

    Raises AgentUnreachable when there is no such program, or it does not come back.
    """
    found = socket or next((path for path in agent.sockets() if agent.answers(path)), agent.sockets()[0])
    admin = pathlib.Path(found).with_name("admin.sock")
    command = [agent.program("ckptctl"), *arguments, "--agent", str(admin)]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as failed:
        raise _errors.make("AGENT_UNREACHABLE", str(failed)) from failed


def _failure(result: subprocess.CompletedProcess[str]) -> Exception:
    name = {3: "AGENT_UNREACHABLE", 4: "NOT_FOUND", 5: "CORRUPT"}.get(result.returncode, "INTERNAL")
    return _errors.make(name, result.stderr.strip() or f"{result.args[0]} ended with {result.returncode}")
