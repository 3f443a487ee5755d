"""Death matrix: what an importer's copy does, and when the memory comes back, for each kind of memory and each way that
the exporter or the importer ends."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from child import Child, Died, Hung
from driver import CudaError
from handles import RELIED_ON, block_size
from memory import GRANULARITY
from pair import Pair
from probe import nvidia_smi
from results import Part, Refused, Skip, Wrong

_KINDS = ("legacy", "posix_fd", "pool")
_NEEDS = 24  # a case that begins has at least this part of the budget, beside what a process is stopped
_STOP = 20  # how much longer a process is stopped than a long copy takes
_SHARE = 0.9  # of the GPU's memory that a restarted trainer wants
_EXPORTED_SHARE = 4  # the allocation is the GPU's memory over this, so that _SHARE cannot be had beside it
_AT_ONCE = 1.0  # seconds within which a dead trainer's memory must be back
_AT_LAST = 5.0
_LEAK = 128 << 20  # bytes: less than one context


class Watch:
    """A third process: how much of the GPU's memory is used, and whether a restarted trainer would find enough."""

    def __init__(self, child: Child) -> None:
        self._child = child
        child.ask("start")
        self.total = child.ask("used")["total"]
        self._wanted = int(self.total * _SHARE) // GRANULARITY * GRANULARITY

    def used(self) -> int:
        """Bytes."""
        return self._child.ask("used")["bytes"]

    def has_room(self) -> bool:
        return self._child.ask("has_room", size=self._wanted)["room"]

    # The driver tells nobody when memory comes back.
    def await_room(self, since: float, seconds: float) -> float | None:
        """Seconds from `since` until there was room, at most `seconds`; None: not within them."""
        while True:
            if self.has_room():
                return time.monotonic() - since
            if time.monotonic() - since > seconds:
                return None
            time.sleep(0.02)


class Case:
    """One pair that holds the same memory, and what is found out about it."""

    def __init__(self, values: dict[str, Any], pair: Pair, watch: Watch, seconds: float) -> None:
        self.values, self.pair, self.watch, self.seconds = values, pair, watch, seconds

    def copy(self, ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The importer's copy after the event: its outcome, and whether the bytes are right.

        Wrong bytes of a copy that reports success fail the case.
        """
        try:
            copied = ask()
        except CudaError as error:
            self.values["copy"] = error.name
            return {}
        except Hung:
            self.values["copy"] = "hang"
            return {}
        except Died:
            self.values["copy"] = "the importer died"
            return {}
        self.values["copy"] = "success"
        self.pair.compare(self.values, copied)
        return copied

    def copy_again(self) -> None:
        self.copy(lambda: self.pair.importer.ask("copy"))

    def start_long_copy(self) -> None:
        self.pair.importer.ask("copy_long", seconds=self.seconds)

    def release(self, died: float) -> None:
        """When a dead exporter's memory came back: while the importer still mapped it, after its close, or its exit."""
        self.values["first_look_seconds"] = time.monotonic() - died
        self.values["used_after_death"] = self.watch.used()
        found = self.watch.await_room(died, _AT_ONCE)
        self.values["room_while_mapped"] = found is not None
        if found is not None:
            return self._freed("death", found)
        hangs = self.values.get("copy") == "hang"  # then the importer hears nothing
        close, leave = ("close", self._close, _AT_ONCE), ("exit", self.pair.importer.kill, _AT_LAST)
        for ending, end, seconds in [leave] if hangs else [close, leave]:
            end()
            self.values[f"used_after_{ending}"] = self.watch.used()
            if self.watch.await_room(time.monotonic(), seconds) is not None:
                return self._freed(ending, time.monotonic() - died)
        raise Wrong("the memory is not back after both processes ended")

    def _freed(self, by: str, seconds: float) -> None:
        self.values.update(room_after=by, seconds_until_room=seconds)

    def _close(self) -> None:
        try:
            self.pair.importer.ask("close")
        except (CudaError, Hung, Died) as error:
            self.values["close"] = str(error)


def _exporter_killed_idle(case: Case) -> None:
    died = _killed(case.pair.exporter)
    case.copy_again()
    case.release(died)


def _exporter_killed_copying(case: Case) -> None:
    case.start_long_copy()
    died = _killed(case.pair.exporter)
    copied = case.copy(lambda: case.pair.importer.answer()[0])
    case.release(died)
    if copied:
        case.values["seconds_copied_after_death"] = copied["ended"] - died
        if copied["ended"] < died:
            raise Skip("the copy ended before the exporter was killed")


def _exporter_frees(case: Case) -> None:
    case.pair.exporter.ask("free_and_reuse", seed=99)
    with contextlib.suppress(Wrong):  # a trainer must not free what is being copied: `equal` says what comes of it
        case.copy_again()
    case.pair.exporter.leave()
    case.release(time.monotonic())


def _exporter_exits(case: Case) -> None:
    case.values["exit_status"] = case.pair.exporter.leave()
    died = time.monotonic()
    case.copy_again()
    case.release(died)


def _importer_killed(case: Case) -> None:
    case.start_long_copy()
    case.values["seconds_to_end"] = case.pair.importer.kill()
    case.copy(lambda: case.pair.exporter.ask("push"))
    case.release(_killed(case.pair.exporter))


def _importer_stopped(case: Case) -> None:
    importer = case.pair.importer
    case.start_long_copy()
    importer.signal(signal.SIGSTOP)
    stopped = time.monotonic()
    case.values["exporter_bytes_per_second"] = case.pair.exporter.ask("push")["bytes_per_second"]
    case.pair.exporter.kill()
    died = time.monotonic()
    end = stopped + case.seconds * _STOP
    case.values["room_while_stopped_seconds"] = case.watch.await_room(died, end - died)
    time.sleep(max(end - time.monotonic(), 0))
    importer.signal(signal.SIGCONT)
    case.copy(lambda: importer.answer()[0])
    case.release(died)


def _exporter_faults(case: Case) -> None:
    case.values["exporter_errors"] = case.pair.exporter.ask("fault")
    if case.values["exporter_errors"]["kernel"] == "none":
        raise Skip("the kernel that should break the context did not")
    case.copy_again()
    case.release(_killed(case.pair.exporter))


def _killed(child: Child) -> float:
    """Kills it; when."""
    when = time.monotonic()
    child.kill()
    return when


_EVENTS: dict[str, Callable[[Case], None]] = {
    "exporter killed, importer idle": _exporter_killed_idle,
    "exporter killed during a copy": _exporter_killed_copying,
    "exporter frees first": _exporter_frees,
    "exporter exits": _exporter_exits,
    "importer killed during a copy": _importer_killed,
    "importer stopped, exporter killed": _importer_stopped,
    "exporter's context breaks": _exporter_faults,  # last: it may cost the GPU
}


def _smi_used() -> str:
    """What nvidia-smi says is used, or why it says nothing."""
    try:
        return nvidia_smi("memory.used")["memory.used"]
    except Skip as skip:
        return str(skip)


def _xids() -> list[str] | None:
    """Of the kernel's log; None: it cannot be read."""
    try:
        log = subprocess.run(["dmesg"], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return re.findall(r"NVRM: Xid.*", log.stdout) if log.returncode == 0 else None


def _die(values: dict[str, Any], part: Part, watch: Watch, kind: str, event: str, seconds: float) -> None:
    xids = _xids()
    with Pair(part) as pair:
        values["used_before"] = watch.used()
        size = watch.total // _EXPORTED_SHARE // GRANULARITY * GRANULARITY
        _open(values, pair, kind, size, block_size(watch.total // 4))
        pair.compare({}, pair.importer.ask("copy"))
        for name in ("exporter_attributes", "importer_attributes", "access", "step"):
            values.pop(name, None)
        values["used_while_both_hold"] = watch.used()
        _EVENTS[event](Case(values, pair, watch, seconds))
    values["used_at_end"] = watch.used()
    values["xids"] = None if xids is None else _xids()[len(xids) :]


# Driver 580.159.04 ends the process that imports a pool's allocation of 37 GB, and not one of 256 MB.
def _open(values: dict[str, Any], pair: Pair, kind: str, size: int, checked: int) -> None:
    try:
        pair.open(values, kind, size, checked)
    except Died as died:
        if kind in RELIED_ON:
            raise
        raise Refused(f"a process died at {values['step']}") from died


def _room_at_first(values: dict[str, Any], watch: Watch) -> None:
    values.update(total=watch.total, used=watch.used(), nvidia_smi=_smi_used())
    if not watch.has_room():
        raise Skip(f"{_SHARE} of the memory cannot be had at first, so nothing can be told from it later")


def _used_at_last(values: dict[str, Any], watch: Watch, at_first: int) -> None:
    values.update(used=watch.used(), nvidia_smi=_smi_used())
    if values["used"] - at_first > _LEAK:
        raise Wrong("memory of dead processes is still used")


def _matrix(part: Part, watch: Watch, seconds: float) -> None:
    last = list(_EVENTS)[-1]
    for event in _EVENTS:
        needs = part.seconds / _NEEDS * (1 if event == last else 1 + len(_KINDS))  # the last ones keep their time
        needs += seconds * _STOP if event.startswith("importer stopped") else 0
        for kind in _KINDS:
            part.ask(f"{event}, {kind}", _die, part, watch, kind, event, seconds, needs=needs)


def run(part: Part) -> None:
    seconds = min(0.5, part.seconds / 240)  # of a long copy, so that a short run is short everywhere
    with Child("importer.py", part.left, part.log) as child:
        watches: list[Watch] = []
        part.ask("a process that looks on", lambda values: watches.append(Watch(child)), needs=0)
        if not watches or not part.ask("room before anyone died", _room_at_first, watches[0], needs=0):
            return
        used = watches[0].used()
        _matrix(part, watches[0], seconds)
        part.ask("memory after all deaths", _used_at_last, watches[0], used, needs=0)
