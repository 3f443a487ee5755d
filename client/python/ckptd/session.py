"""One handle of libckpt: its calls with Python types. In a forked child everything here is a no-op.

Sizes are bytes, times seconds. Functions that may fail give libckpt's status: 0, or a negative number for
`_errors.code_name`; `_lib.sentence()` tells more.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from . import _errors, _lib
from .state import Table
from .table_view import table_view

CANCELLED = -35
TIMEOUT = -18
FOREVER = 365 * 86400.0
PATHS = ("push", "pull", "auto")  # as libckpt numbers them
_SLICE = 0.2  # seconds that a signal waits for its handler


_forks = 0  # how often this process was forked off since the import: known without a system call in each step


def _forked() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_forked)


class StepState(NamedTuple):
    """What is known of one save. `flags`: as in `_lib`; `code`: why it was dropped, or 0."""

    flags: int
    code: int
    blocked_seconds: float
    eager_bytes: int


def nanoseconds(seconds: float | None) -> int:
    """For libckpt; None is a year."""
    return int(min(FOREVER if seconds is None else max(seconds, 0.0), FOREVER) * 1e9)


def error(status: int, instead_of_save: type[Exception] | None = None) -> Exception:
    """The exception for a status of the call that just failed on this thread. instead_of_save: where no save was
    dropped, the class of what is a SaveError elsewhere (a full or hung storage)."""
    name, sentence = _errors.code_name(status), _lib.sentence() or "libckpt failed"
    told = _errors.make(name, sentence)
    if instead_of_save is not None and isinstance(told, _errors.SaveError):
        return _errors.make(name, sentence, instead_of_save)
    return told


class Session:
    """Opens a handle. ValueError for options that libckpt refuses; succeeds without an agent."""

    def __init__(
        self, job: str, rank: int, world: int, socket: str | None, gate_timeout: float | None, gpu_path: str = "push",
        postmortem: bool = False, storages_stay: bool = False, restart: bool = False,
    ) -> None:  # fmt: skip
        self._lib = _lib.library()
        options = _lib.Options(
            rank=rank, world=world, job=job.encode(), socket=socket.encode() if socket else None,
            gate_timeout_ns=0 if gate_timeout is None else nanoseconds(gate_timeout), gpu_path=PATHS.index(gpu_path),
            flags=(_lib.POSTMORTEM if postmortem else 0) | (_lib.RESTART if restart else 0),
        )  # fmt: skip
        handle = ctypes.c_void_p()
        status = self._lib.ckpt_open(ctypes.byref(options), ctypes.byref(handle))
        if status:
            raise error(status)
        self._handle = handle
        self._slice = threading.RLock()  # held during a slice of a wait: the handle must live
        self._joining = threading.RLock()  # the same, while a restore waits for the other ranks
        self.newest = 0  # last step passed to ckpt_save
        self._forks = _forks
        self._stays = storages_stay
        self._saved = ctypes.byref(ctypes.c_int32())  # for what a step tells; it keeps the number alive
        self._finalizer = weakref.finalize(self, _close, self._lib, handle, os.getpid())
        self._finalizer.atexit = not postmortem  # a process that ends without close() has died

    @property
    def alive(self) -> bool:
        """Whether the handle is open, in the process that opened it."""
        return self._finalizer.alive and self._forks == _forks

    @property
    def handle(self) -> ctypes.c_void_p:
        """For calls that this class does not have. RestoreError once it is closed: its memory is free then."""
        self.require_alive()
        return self._handle

    def require_alive(self) -> None:
        """RestoreError when closed, or in a forked child."""
        if not self.alive:
            raise _errors.make("REFUSED", "the checkpointer is closed, or this is a forked child; make a new one")

    def register(self, table: Table, extra_bytes: int) -> int:
        """Makes `table` the layout. libckpt copies everything but the tensors' memory."""
        if not self.alive:
            return CANCELLED
        view, kept = table_view(table, extra_bytes, self._stays)
        status = self._lib.ckpt_register(self._handle, ctypes.byref(view))
        del kept
        return status

    def save(self, step: int, document: bytes, flags: int) -> int:
        """Starts the capture of `step`; eager tensors and `document` are copied when it returns."""
        if not self.alive:
            return CANCELLED
        self.newest = max(self.newest, step)
        return self._lib.ckpt_save(self._handle, step, document, len(document), None, flags)

    def tick(self, step: int, document: bytes | None = None, flags: int = 0) -> int:
        """A step that is not saved. With `document` it may be captured post mortem."""
        if not self.alive:
            return CANCELLED
        size = len(document) if document is not None else 0
        return self._lib.ckpt_step(self._handle, step, document, size, None, flags, self._saved)

    def use_streams(self, streams: list[tuple[int, int]]) -> int:
        """(GPU, stream) of each: what is enqueued there now is what the next save captures, or a restore overwrites."""
        if not self.alive:
            return CANCELLED
        return next(filter(None, (self._lib.ckpt_stream(self._handle, *pair) for pair in streams)), 0)

    def gate(self, streams: Sequence[int] = ()) -> int:
        """Returns when captured memory may be changed; with streams, when they wait for that themselves."""
        if not self.alive:
            return 0
        if not streams:
            return self._lib.ckpt_gate(self._handle, 0)
        statuses = [self._lib.ckpt_gate_stream(self._handle, stream, 0) for stream in streams]
        return next(filter(None, statuses), 0)

    def unexport(self, timeout: float) -> int:
        """Returns when no other process has registered memory open: then it may be freed."""
        if not self.alive:
            return 0
        return self._in_slices(lambda most: self._lib.ckpt_unexport(self._handle, most), timeout)

    def torn(self) -> np.ndarray:
        """Columns of the table that changed before the gate, after a save was dropped as TORN."""
        count = self._lib.ckpt_torn(self._handle, None, 0) if self.alive else 0
        indices = np.zeros(count, dtype=np.uint64)
        if count:
            self._lib.ckpt_torn(self._handle, indices.ctypes.data_as(ctypes.c_void_p), count)
        return indices

    def poll(self, step: int) -> StepState | None:
        """State of a save of this handle; None when it is no longer remembered."""
        view = _lib.StepState()
        if not self.alive or self._lib.ckpt_poll(self._handle, step, ctypes.byref(view)):
            return None
        return StepState(view.flags, view.code, view.blocked_ns / 1e9, view.eager_bytes)

    def wait(self, step: int, level: int, timeout: float | None) -> int:
        """Waits until `step` has `level`: 0, TIMEOUT, or why it was dropped. With STILL in `level`, the promise that
        nothing lazy changes meanwhile."""
        return self._in_slices(lambda most: self._lib.ckpt_wait(self._handle, step, level, most), timeout)

    def _in_slices(self, wait: Callable[[int], int], timeout: float | None) -> int:
        """What `wait`, which is given nanoseconds, comes to within `timeout`. Between two calls Python handles signals,
        in its main thread: another thread waits in one call."""
        if not self.alive:
            return CANCELLED
        if threading.current_thread() is not threading.main_thread():
            return wait(nanoseconds(timeout))
        left = FOREVER if timeout is None else timeout
        deadline = time.monotonic() + left
        while True:
            with self._slice:
                status = wait(nanoseconds(min(left, _SLICE)))
            left = deadline - time.monotonic()
            if status and not self.alive:  # closed by a handler, or another thread
                return CANCELLED
            if status != TIMEOUT or left <= 0:
                return status

    def with_others(self, call: Callable[[ctypes.c_void_p], int]) -> tuple[int, Exception | None]:
        """The status of `call`, a half of a restore, which waits for the other ranks; and its exception if it failed.

        The main thread handles signals meanwhile: what a handler raises (KeyboardInterrupt) ends the restore, and goes
        on from here. RestoreError once closed."""
        handle = self.handle
        if threading.current_thread() is not threading.main_thread():
            return self._told(call, handle)
        ended: list[tuple[int, Exception | None]] = []
        thread = threading.Thread(
            target=lambda: ended.append(self._told(call, handle)), name="ckptd-restore", daemon=True
        )
        thread.start()
        try:
            thread.join()
        except BaseException:
            self._cancel_restore(lambda seconds: thread.join(seconds) or not thread.is_alive())
            raise
        return ended[0]

    def _told(self, call: Callable[[ctypes.c_void_p], int], handle: ctypes.c_void_p) -> tuple[int, Exception | None]:
        with self._joining:
            if not self.alive:
                return CANCELLED, _errors.make("CANCELLED", "the checkpointer was closed", _errors.RestoreError)
            status = call(handle)
            return status, error(status, _errors.RestoreError) if status < 0 else None

    def _cancel_restore(self, over: Callable[[float], bool]) -> None:
        """Until `over`, which is given seconds to wait: a restore that only begins would miss the first."""
        self._lib.ckpt_restore_cancel(self._handle)  # null once closed: libckpt refuses it
        while not over(_SLICE):
            self._lib.ckpt_restore_cancel(self._handle)

    def info(self) -> _lib.InfoView:
        """What libckpt knows of its connection and layout; zeros after `close`."""
        view = _lib.InfoView()
        if self.alive:
            self._lib.ckpt_info(self._handle, ctypes.byref(view))
        return view

    def close(self, timeout: float) -> int:
        """Waits for the last save to be durable, then ends threads and session. Closed, or a fork: 0."""
        if not self.alive:
            return 0
        deadline = time.monotonic() + timeout
        self._cancel_restore(lambda seconds: self._joining.acquire(timeout=seconds))
        self._joining.release()
        if timeout > 0:
            self.wait(self.newest, _lib.DURABLE | _lib.STILL, timeout)
        if not self.alive:  # closed meanwhile, as by a handler
            return CANCELLED
        self._finalizer.detach()
        handle, self._handle = self._handle, ctypes.c_void_p()  # libckpt refuses null; what was freed it cannot know
        left = max(nanoseconds(deadline - time.monotonic()), 1) if timeout > 0 else 0  # 0 asks for nothing durable
        with self._slice:
            return self._lib.ckpt_close(handle, left)


def _close(lib: ctypes.CDLL, handle: ctypes.c_void_p, pid: int) -> None:
    if os.getpid() == pid:
        lib.ckpt_close(handle, 0)
