"""The session of this process with the agent that `StorageWriter` and `StorageReader` of one job and rank share.

`dcp.load` and a later `dcp.save` of a script belong to one attempt of the job: the reader joins it and says what it
loaded, the writer goes on above that step. A writer that comes first joins by itself. Nobody closes a link by accident:
it lives until `close()` or the end of the process.

A save never passes a step that it cannot capture (the agent drops such a step on all ranks): it waits until the agent
has the memory for this layout and a slot of it is free. And it waits until the save before is on storage: a newer
snapshot may take the place of one that was not written yet, and who calls dcp.save wants each of them.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np

from .. import _errors, _lib
from .. import agent as agents
from ..session import TIMEOUT, Session, error, nanoseconds
from ._pieces import Pieces

_CAPTURE_TIMEOUT = 1800.0  # seconds for a free slot, and for a capture: who waits in dcp.save wants the checkpoint
_PASS_TIMEOUT = 10.0  # seconds to have a small layout prepared
_LOOK_AGAIN = 0.005  # seconds between two looks at memory that is being prepared
_REFUSED = {"REGION_FULL", "QUOTA_EXCEEDED", "JOB_OWNED", "RANK_TAKEN", "DRAINING", "FENCED", "NOT_RESTORED"}
_EXTRA_LEAST = 64 << 10  # what ckpt_register reserves for the document: max(64 KiB, 4 x need)


class Deadline:
    """`seconds` from now."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self.seconds = seconds

    @property
    def left(self) -> float:
        """Seconds, not below 0."""
        return max(0.0, self._at - time.monotonic())


class Link:
    """All calls but `wait` come from one thread at a time: `lock` is held around them."""

    def __init__(self, job: str, rank: int, world: int, socket: str | None) -> None:
        self.job, self.rank, self.world, self.socket = job, rank, world, socket
        self.lock = threading.RLock()
        self._lib = _lib.library()
        self._session = Session(job, rank, world, socket, _CAPTURE_TIMEOUT)
        self._busy = threading.Condition()
        self._waiting = 0  # threads in `wait`: the handle must live
        self._offer: _lib.RestoredView | None = None  # a decided restore whose outcome was not reported yet
        self._joined = False
        self._loaded = False  # whether this process read a checkpoint of this attempt
        self._floor = 0  # steps at or below it exist
        self._last: int | None = None  # newest save of this link
        self.pieces: Pieces | None = None  # what is registered; keeps the memory while the copy thread may read it
        self._room = 0  # bytes that the registered layout has for the document

    # ---- attempts

    def join(self, want: int, step: int, deadline: Deadline, connect_timeout: float) -> _lib.RestoredView:
        """Joins the job's next attempt; collective in effect. What is offered can be read until `settle`.

        Raises AgentUnreachable, NotFound, LayoutMismatch or RestoreError.
        """
        view = _lib.RestoredView()
        asked = _lib.Want(
            want=want, step=step, timeout_ns=max(1, nanoseconds(deadline.left)),
            connect_timeout_ns=max(1, nanoseconds(connect_timeout)),
        )  # fmt: skip
        self._offer, self._joined, self._last = None, False, None
        _, refused = self._session.with_others(
            lambda handle: self._lib.ckpt_restore_begin(handle, ctypes.byref(asked), ctypes.byref(view))
        )
        if refused is not None:
            raise refused
        self._offer, self._loaded = view, False
        return view

    def settle(self, status: int = 0, reason: str = "") -> None:
        """Reports what became of the offer, and waits for the other ranks. RestoreError when one could not read it."""
        if self._offer is None:
            return
        view, self._offer = self._offer, None
        step = view.snapshot_step
        sentence = reason[:200].encode("utf-8", "replace") or None
        ended, refused = self._session.with_others(
            lambda handle: self._lib.ckpt_restore_end(handle, status, sentence, ctypes.byref(view))
        )
        if ended == _lib.RELOAD:
            raise _errors.make(
                "RESTORE_FAILED", f"job {self.job}: step {step} could not be read by every rank; "
                f"load again: step {view.snapshot_step} can be had"
            )  # fmt: skip
        if refused is not None:
            raise refused
        self._joined, self._floor = True, view.snapshot_step

    def loaded(self) -> None:
        """The offer was read; the saves of this attempt go on above it."""
        self.settle()
        self._loaded = True

    def enter(self, step: int, restart: bool, deadline: Deadline, connect_timeout: float) -> None:
        """Before a save: joins if nobody did. SaveError for a step that is not above what exists."""
        if self._offer is not None:
            self.settle()
        if not self._joined:
            self.join(_lib.WANT_FRESH if restart else _lib.WANT_NEWEST, 0, deadline, connect_timeout)
            self.settle()
        newest = self._floor if self._last is None else self._last
        if step > newest:
            return
        if self._last is None and not self._loaded:
            raise _errors.make(
                "NOT_RESTORED", f"job {self.job} has step {newest}, and this process saves step {step} without having "
                "loaded one: dcp.load(..., storage_reader=StorageReader(...)) first, save above it, or say "
                "StorageWriter(..., restart=True)", _errors.SaveError
            )  # fmt: skip
        raise _errors.make(
            "REFUSED", f"job {self.job}: step {step} is not above {newest}, the newest of this attempt; steps rise. "
            f"To go on from an older one, dcp.load it with checkpoint_id='step-...' first", _errors.SaveError
        )  # fmt: skip

    # ---- what is offered

    def headers(self) -> list[tuple[bytes, int]]:
        """(text, offset of the tensors in the slot) of each image of the offer."""
        found = []
        for image in range(self._offer.image_count if self._offer is not None else 0):
            text, size, offset = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint64()
            status = self._lib.ckpt_restore_header(
                self._session.handle, image, ctypes.byref(text), ctypes.byref(size), ctypes.byref(offset)
            )
            if status:
                raise error(status, _errors.RestoreError)
            found.append((ctypes.string_at(text.value or 0, size.value), offset.value))
        return found

    def read(self, boxes: np.ndarray) -> int:
        """Fills host memory from the offer, checksums compared. boxes: [n, 3] of address, offset in the slot, bytes."""
        flagged = np.zeros((len(boxes), 4), dtype=np.uint64)
        flagged[:, :3] = boxes
        return self._lib.ckpt_restore_read(self._session.handle, flagged.ctypes.data_as(ctypes.c_void_p), len(boxes))

    # ---- saves

    def capture(self, step: int, pieces: Pieces, deadline: Deadline) -> None:
        """Returns when the state is in the agent's memory and may be changed. SaveError when it is not."""
        try:
            self._await_previous(deadline)
            document = pieces.document()
            known = self.pieces
            if known is None or not pieces.same_as(known) or len(document) > self._room:
                self._register(pieces, len(document))
            self._await_memory(step, deadline)
        except BaseException:
            pieces.release()
            raise
        self._last = step
        status = self._session.save(step, document, _lib.WAIT_FOR_SLOT) or self._session.gate()
        pieces.release()  # not when a signal ends it: then the capture goes on
        if status:
            raise self._dropped(step, status)

    def pass_over(self, step: int, nothing: Pieces) -> None:
        """This rank cannot capture `step`: the agent drops it on all ranks, so that nobody waits for it there.

        A save whose addresses are not the registered ones is dropped, and counts as passed. nothing: something to
        register where nothing is yet.
        """
        try:
            if self.pieces is None:
                self._register(nothing, 0)
            self._await_memory(step, Deadline(_PASS_TIMEOUT))
            nowhere = np.zeros(len(self.pieces or nothing), dtype=np.uint64)
            self._last = self._session.newest = step
            address = nowhere.ctypes.data_as(ctypes.c_void_p)
            self._lib.ckpt_save(self._session.handle, step, None, 0, address, 0)
        except _errors.CkptdError:
            pass  # the failure that brought us here is told; the others wait for their timeout

    def wait(self, step: int, level: int, deadline: Deadline) -> None:
        """Until the step has `level` on all ranks. SaveError when it was dropped, or the time is over."""
        with self._busy:
            self._waiting += 1
        try:
            status = self._session.wait(step, level, deadline.left)
        finally:
            with self._busy:
                self._waiting -= 1
                self._busy.notify_all()
        if status == TIMEOUT:
            raise self._late(step, "not captured on every rank" if level == _lib.CAPTURED else "not on storage")
        if status:
            raise self._dropped(step, status)

    def close(self, timeout: float) -> bool:
        """Waits for the last save to be on storage, and for who waits in `wait`. False if it is not."""
        with self._busy:
            if not self._busy.wait_for(lambda: not self._waiting, timeout):
                return False
        with self.lock:
            return self._session.close(timeout) == 0

    @property
    def alive(self) -> bool:
        """False when closed, or in a forked child."""
        return self._session.alive

    # ---- inside

    def _await_previous(self, deadline: Deadline) -> None:
        if self._last is None:
            return
        if self._session.wait(self._last, _lib.DURABLE, deadline.left) == TIMEOUT:
            raise self._late(self._last, "the save before: not on storage")

    def _register(self, pieces: Pieces, document_bytes: int) -> None:
        view, kept = pieces.view(document_bytes)
        status = self._lib.ckpt_register(self._session.handle, ctypes.byref(view))
        del kept
        if status:
            raise error(status)
        self.pieces = pieces
        self._room = max(_EXTRA_LEAST, 4 * document_bytes)

    def _await_memory(self, step: int, deadline: Deadline) -> None:
        """The agent prepares memory for a new layout in the background; there is no event for it in the C ABI."""
        began = deadline.left
        while True:
            info = self._session.info()
            if info.ready:
                return
            refused = _errors.code_name(info.last_code) if info.last_code else ""
            if info.broken or (refused in _REFUSED and began - deadline.left > 1):
                raise _errors.make(refused, info.last_sentence.decode("utf-8", "replace"), _errors.SaveError)
            if not deadline.left:
                raise self._late(step, f"its memory is not ready ({info.prepared_bytes} of {info.layout_bytes} bytes)")
            time.sleep(_LOOK_AGAIN)

    def _dropped(self, step: int, status: int) -> Exception:
        name = _errors.code_name(status)
        sentence = _lib.sentence() or f"the save of step {step} was dropped: {name}"
        return _errors.make(name, f"job {self.job}: {sentence}", _errors.SaveError)

    def _late(self, step: int, what: str) -> Exception:
        info = self._session.info()
        why = info.last_sentence.decode("utf-8", "replace") if info.last_code else ""
        if not info.connected:
            why = why or "the agent does not answer"
        more = f" ({why})" if why else ""
        return _errors.make("TIMEOUT", f"job {self.job}: step {step}: {what} in time{more}", _errors.SaveError)


_links: dict[tuple[int, str, int, int, str | None], Link] = {}
_links_lock = threading.Lock()


def link(
    job: str, rank: int, world: int, agent: str | None, storage: str | None, connect_timeout: float = 10.0
) -> Link:
    """The one link of this process for these; a forked child has its own."""
    socket = agent or os.environ.get("CKPTD_SOCKET")
    if agent == "auto":
        socket = agents.ensure(storage, connect_timeout, _joined((os.getpid(), job, rank, world)))
    key = (os.getpid(), job, rank, world, socket)
    with _links_lock:
        found = _links.get(key)
        if found is None or not found.alive:
            found = _links[key] = Link(job, rank, world, socket)
        return found


def _joined(place: tuple[int, str, int, int]) -> str | None:
    """Socket of the agent that agent="auto" found before."""
    candidates = agents.sockets()
    with _links_lock:
        found = [key[4] for key, held in _links.items() if key[:4] == place and held.alive and key[4] in candidates]
    return found[0] if found else None
