"""What each kind of memory does: pushed by its own process, and pulled by another one as the same user, as another
user, and from another PID namespace."""

from __future__ import annotations

import os
import subprocess
from typing import Any

from child import Child, Who
from memory import GRANULARITY, KINDS
from pair import Pair
from results import Part, Skip

_BYTES = 1 << 28  # or 1/32 of the GPU's memory
_NOBODY = 65534
_NEEDS = 4.0  # seconds a case
RELIED_ON = ("legacy", "posix_fd")
_FOR_OTHERS = ("legacy", "posix_fd", "pool")  # kinds that have a handle

# Who exports, who imports, and whether ckptd relies on it: its copier acts as the trainer's user.
_PEOPLE: dict[str, tuple[Who, Who, bool]] = {
    "same user": (Who(), Who(), True),
    "copier acting as the trainer's user": (Who(user=_NOBODY), Who(acting=_NOBODY), True),
    "root imports a user's": (Who(user=_NOBODY), Who(), False),
    "another user imports root's": (Who(), Who(user=_NOBODY), False),
    "importer in another PID namespace": (Who(), Who(own_pids=True), False),
}


def block_size(total: int) -> int:
    """Bytes copied and compared, for a GPU with `total` bytes."""
    return max(min(_BYTES, total // 32) // GRANULARITY, 1) * GRANULARITY


def _require(exporter: Who, importer: Who) -> None:
    changes = exporter.user is not None or importer.user is not None or importer.acting is not None
    if changes and os.geteuid() != 0:
        raise Skip("only root can run a process as another user")
    if importer.own_pids:
        tried = _try_namespace()
        if tried:
            raise Skip(f"no PID namespace: {tried}")


def _try_namespace() -> str:
    try:
        command = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip() if done.returncode else ""


def _push(values: dict[str, Any], part: Part, kind: str, size: int) -> None:
    with Pair(part) as pair:
        pair.exporter.ask("start")
        made = pair.exporter.ask("allocate", kind=kind, size=size, checked=size, seed=0)
        pair.crc = made["crc"]
        values["exporter_attributes"] = made["attributes"]
        copied = pair.exporter.ask("push")
        values["bytes"], values["bytes_per_second"] = size, copied["bytes_per_second"]
        pair.compare(values, copied)


def _pull(values: dict[str, Any], part: Part, kind: str, people: tuple[Who, Who], size: int) -> None:
    _require(*people)
    with Pair(part, *people) as pair:
        pair.open(values, kind, size, size)
        copied = pair.importer.ask("copy")
        values["bytes"], values["bytes_per_second"] = size, copied["bytes_per_second"]
        pair.compare(values, copied)
        values["step"] = "close"
        pair.importer.ask("close")
        del values["step"]


def _size(values: dict[str, Any], part: Part, sizes: list[int]) -> None:
    with Child("importer.py", part.left, part.log) as looker:
        looker.ask("start")
        values["bytes"] = block_size(looker.ask("used")["total"])
        sizes.append(values["bytes"])


def run(part: Part) -> None:
    sizes: list[int] = []
    if not part.ask("size of a block", _size, part, sizes, needs=_NEEDS):
        return
    size = sizes[0]
    for kind in KINDS:
        part.ask(f"{kind}, push", _push, part, kind, size, needs=_NEEDS, must=kind != "pool")
    for name, (exporter, importer, relied_on) in _PEOPLE.items():
        for kind in KINDS if name == "same user" else _FOR_OTHERS:
            must = relied_on and kind in RELIED_ON
            part.ask(f"{kind}, pull, {name}", _pull, part, kind, (exporter, importer), size, needs=_NEEDS, must=must)
