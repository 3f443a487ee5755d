"""Restore: one collective decision, then this rank's bytes into this rank's tensors.

Planned and compared first, then written: tensors, schedulers, optimizer plain values, other objects, generators. Until
libckpt says that every rank has loaded, nobody trains; if one failed, all load again what the next attempt chose.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from . import _errors, _lib, device, rng
from .header import Entry, Header
from .optim import OptimizerPart
from .placement import Plan, decode_document, plan_part
from .quiet import gc_paused
from .session import Session, nanoseconds
from .state import State

_SHOWN = 8  # names in the sentence of a LayoutMismatch
_MISMATCH, _FAILED = -6, -7
NO_SINGLE_RANK = 2**32 - 1  # in ckpt_skipped


@dataclass
class Restored:
    """What `restore()` did. `source`: region, replica, parity, local, storage, rescued, or none.

    `skipped`: newer steps that were passed over, each with its code and why: "step 60 of attempt 1: NOT_FOUND: not
    committed, and in the memory of 6 of 8 ranks: rank 5: its node n2 and its holder n3 are gone; ..."; with strict=False
    also what was not restored."""

    step: int = 0
    source: str = "none"
    seconds: float = 0.0
    attempt: int = 0
    skipped: list[str] = field(default_factory=list)


class Restorer:
    """One call of `restore()`."""

    def __init__(self, session: Session, state: State, generators: bool, strict: bool) -> None:
        self._session = session
        self._lib = _lib.library()
        self._state = state
        self._generators = generators
        self._strict = strict
        self._notes: list[str] = []
        self._told: tuple[int, int] | None = None  # step and attempt of which somebody has read the plain values

    def run(self, want: int, step: int, timeout: float, connect_timeout: float) -> Restored:
        """Joins, loads, waits for the others. Raises AgentUnreachable, NotFound, LayoutMismatch or RestoreError."""
        self.begin(want, step, timeout, connect_timeout)
        return self.finish()

    def begin(self, want: int, step: int, timeout: float, connect_timeout: float) -> int:
        """Joins; the step that the ranks decided on, 0 for none. `finish` must follow."""
        self._began = time.monotonic()
        self._view = self._begin(want, step, timeout, connect_timeout)
        return self._view.snapshot_step

    def plain(self) -> dict[str, Any]:
        """After `begin`: the plain values of the snapshot by path of their part, before anything is restored.

        `finish` then restores this snapshot and no other one."""
        header = self._header(self._view)
        if header.extra is None:
            raise _errors.make("RESTORE_FAILED", f"step {self._view.snapshot_step}: not written by the Python package")
        self._told = self._view.snapshot_step, self._view.snapshot_attempt
        return decode_document(self._bytes(header.extra))["parts"]

    def finish(self) -> Restored:
        """Loads, waits for the others; errors as of `run`."""
        view = self._view
        while True:
            if self._told not in (None, (view.snapshot_step, view.snapshot_attempt)):
                raise _errors.make("RESTORE_FAILED", f"a rank could not load step {self._told[0]}; start again")
            status, failure = self._try_load(view)
            reason = str(failure)[:200].encode() if failure else None
            ended, refused = self._end(status, reason, view)
            if isinstance(failure, Exception) and status in (_MISMATCH, _FAILED):
                raise failure
            if refused is not None:
                raise refused from failure
            if ended != _lib.RELOAD:
                return self._result(view, time.monotonic() - self._began)

    def _begin(self, want: int, step: int, timeout: float, connect_timeout: float) -> _lib.RestoredView:
        view = _lib.RestoredView()
        asked = _lib.Want(
            want=want, step=step, timeout_ns=nanoseconds(timeout),
            connect_timeout_ns=max(1, nanoseconds(connect_timeout)),
        )  # fmt: skip
        _, refused = self._session.with_others(
            lambda handle: self._lib.ckpt_restore_begin(handle, ctypes.byref(asked), ctypes.byref(view))
        )
        if refused is not None:
            raise refused
        return view

    def _end(self, status: int, reason: bytes | None, view: _lib.RestoredView) -> tuple[int, Exception | None]:
        return self._session.with_others(
            lambda handle: self._lib.ckpt_restore_end(handle, status, reason, ctypes.byref(view))
        )

    def _result(self, view: _lib.RestoredView, seconds: float) -> Restored:
        skipped = [self._passed_over(view.skipped[i], i) for i in range(min(view.skipped_count, 32))]
        source = _lib.SOURCES[view.source] if view.source < len(_lib.SOURCES) else "unknown"
        return Restored(view.snapshot_step, source, seconds, view.attempt, skipped + self._notes)

    def _passed_over(self, item: _lib.Skipped, index: int) -> str:
        rank = "" if item.rank == NO_SINGLE_RANK else f" on rank {item.rank}"
        why = self._lib.ckpt_skipped_why(self._session.handle, index).decode("utf-8", "replace")
        head = f"step {item.step} of attempt {item.attempt}: {_errors.code_name(item.code)}{rank}"
        return f"{head}: {why}" if why else head

    def _try_load(self, view: _lib.RestoredView) -> tuple[int, Exception | None]:
        """(0, None), or a status and the exception that says why."""
        self._notes = []
        if view.snapshot_attempt == 0:
            return 0, None
        try:
            with gc_paused():
                self._load(view)
            return 0, None
        except _ReadFailed as failed:
            return failed.status, failed
        except _errors.LayoutMismatch as mismatch:
            return _MISMATCH, mismatch
        except Exception as failed:
            told = _errors.make("RESTORE_FAILED", f"step {view.snapshot_step}: {type(failed).__name__}: {failed}")
            told.__cause__ = failed
            return _FAILED, told

    def _load(self, view: _lib.RestoredView) -> None:
        header = self._header(view)
        if header.extra is None:
            raise ValueError("the snapshot has no extra tensor; it was not written by the Python package")
        document = decode_document(self._bytes(header.extra))
        surveys = self._state.surveys()
        rows = (row for found in surveys.values() for row in [*found.stable, *found.volatile])
        plan = Plan(header, document, {row.tensor.device for row in rows})
        for part in sorted(self._state.parts, key=lambda part: isinstance(part, OptimizerPart)):  # after the parameters
            plan_part(plan, part, surveys[part.path])
        self._judge(plan)
        self._read(plan.targets)
        for _, action in sorted(plan.actions, key=lambda item: item[0]):
            action()
        if self._generators and document["rng"] is not None:
            self._notes += rng.apply(document["rng"])

    def _judge(self, plan: Plan) -> None:
        here = {part.path for part in self._state.parts}
        problems = plan.problems + [f"{name}: in the checkpoint, not here" for name in plan.unclaimed()]
        problems += [f"{path}: in the checkpoint, not here" for path in plan.plain if path not in here]
        if problems and self._strict:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise _errors.make("LAYOUT_MISMATCH", "; ".join(problems[:_SHOWN]) + more)
        self._notes += [*problems, *plan.left_out]

    def _header(self, view: _lib.RestoredView) -> Header:
        header = Header()
        for image in range(view.image_count):
            text, size, offset = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
            status = self._lib.ckpt_restore_header(
                self._session.handle, image, ctypes.byref(text), ctypes.byref(size), ctypes.byref(offset)
            )
            if status:
                raise _ReadFailed(status)
            header.add(ctypes.string_at(text.value or 0, size.value), offset.value)
        return header

    def _bytes(self, entry: Entry) -> bytes:
        buffer = torch.empty(entry.end - entry.begin, dtype=torch.uint8, device="cpu")
        self._read([(entry, buffer)])
        return buffer.numpy().tobytes()

    def _read(self, targets: list[tuple[Entry, torch.Tensor]]) -> None:
        """Fills tensors of any strides; each stored range is read once."""
        first: dict[int, torch.Tensor] = {}
        boxes: list[tuple[int, int, int, int]] = []
        devices: set[int] = set()
        copies: list[tuple[torch.Tensor, torch.Tensor]] = []
        for entry, tensor in targets:
            if entry.begin == entry.end:
                continue
            if entry.begin in first:
                copies.append((tensor, first[entry.begin]))
                continue
            direct = tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()
            memory = tensor if direct else device.empty_like(tensor)
            first[entry.begin] = memory
            ordinal = device.ordinal(memory)
            devices.add(ordinal)
            flags = 0 if ordinal == device.HOST else _lib.DEVICE
            boxes.append((memory.data_ptr(), entry.begin, entry.end - entry.begin, flags))
            if not direct:
                copies.append((tensor, memory))
        streams = device.current_streams(sorted(devices - {device.HOST}))
        if streams and (status := self._session.use_streams(streams)):
            raise _ReadFailed(status)
        self._fetch(np.array(boxes, dtype=np.uint64).reshape(-1, 4))
        for tensor, memory in copies:
            if tensor.data_ptr() != memory.data_ptr():
                write_strided(tensor, memory)

    def _fetch(self, boxes: np.ndarray) -> None:
        """boxes: [n, 4] of address, offset in the slot, bytes, flags."""
        status = self._lib.ckpt_restore_read(self._session.handle, boxes.ctypes.data_as(ctypes.c_void_p), len(boxes))
        if status:
            raise _ReadFailed(status)


class _ReadFailed(Exception):
    """libckpt could not give the bytes; `status` goes to the agent, which then chooses another copy or step."""

    def __init__(self, status: int) -> None:
        super().__init__(_lib.sentence() or _errors.code_name(status))
        self.status = status


def write_strided(target: torch.Tensor, value: torch.Tensor) -> None:
    """`value` into a tensor of any strides, also one whose elements share memory (expanded, windows)."""
    with torch.no_grad():
        if not _overlaps(target):
            target.detach().copy_(value)
            return
        span = 1 + sum((size - 1) * stride for size, stride in zip(target.shape, target.stride()))
        flat = target.detach().as_strided((span,), (1,))
        places = torch.arange(span, device=flat.device).as_strided(target.shape, target.stride()).reshape(-1)
        flat[places] = value.reshape(-1)


def _overlaps(tensor: torch.Tensor) -> bool:
    """Whether two elements share memory."""
    reached = 0
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1:
            if stride <= reached:
                return True
            reached += (size - 1) * stride
    return False
