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
    found = socket or next((path for path in agent.sockets() if agent.answers(path)), agent.sockets()[0])
    admin = pathlib.Path(found).with_name("admin.sock")
    command = [agent.program("ckptctl"), "status", *([job] if job else []), "-o", "json", "--agent", str(admin)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode in (0, 1) and result.stdout.startswith("{"):  # 1: the agent is not healthy, and says why
        return json.loads(result.stdout, object_hook=lambda fields: SimpleNamespace(**fields))
    name = {3: "AGENT_UNREACHABLE", 4: "NOT_FOUND"}.get(result.returncode, "INTERNAL")
    raise _errors.make(name, result.stderr.strip() or f"{command[0]} ended with {result.returncode}")
