"""When the tensors of an asynchronous save may change: not before libckpt has copied them.

`dcp.async_save` asks a stager for a state dict that is safe to save while training goes on, and saves that one on a
thread of its own. Our stagers give the live one, and keep who changes it waiting until the capture is over: one copy,
straight into the agent's memory. A save that fails before its capture ends the wait as well: a watcher thread joins the
thread of the save.
"""

from __future__ import annotations

import threading
import weakref
from concurrent.futures import Future
from typing import Any

from .. import gate

_of_thread = threading.local()  # `.staged`: whose save this thread runs


def captured() -> None:
    """The save that this thread runs has copied its tensors."""
    staged = getattr(_of_thread, "staged", None)
    _of_thread.staged = None
    if staged is not None:
        staged.finish()


class Staged(Future):
    """Done when the state dict may change.

    `result()` gives the state dict at once to the thread that saves it (torch's executor asks for it first), which
    marks that thread as the one to wait for.
    """

    def __init__(self, state_dict: Any, stager: Any = None) -> None:
        """stager: kept alive as long as this."""
        super().__init__()
        self._state_dict = state_dict
        self._stager = stager
        self._guard = threading.Lock()
        self.begun = threading.Event()

    def begin(self) -> None:
        """Called by the thread that saves."""
        if self.begun.is_set():
            return
        self.begun.set()
        _of_thread.staged = self
        threading.Thread(target=self._watch, args=(threading.current_thread(),), daemon=True).start()

    def result(self, timeout: float | None = None) -> Any:
        """The state dict; raises when the save ended before its capture did."""
        if self.done():
            super().result()
        else:
            self.begin()
        return self._state_dict

    def finish(self, failure: Exception | None = None) -> None:
        """Nobody reads the tensors any more. Only the first call counts."""
        with self._guard:
            if self.done():
                return
            self.set_running_or_notify_cancel()
        if failure is None:
            self.set_result(None)
        else:
            self.set_exception(failure)

    def _watch(self, saver: threading.Thread) -> None:
        saver.join()
        self.finish(RuntimeError("the save ended before its state was captured; its own future tells why"))


class Stager:
    """For `dcp.async_save(..., async_stager=Stager())`, torch 2.9 and newer: training goes on while it is captured.

    Wait for `staging_completion` of the answer before anything of the state dict changes. Optimizers of torch wait by
    themselves; buffers that change in the next forward pass (BatchNorm) do not. It raises when the save failed before
    it was captured; one that failed before async_save returned is told by `upload_completion` alone (torch 2.10).
    """

    _synchronize_after_execute = False
    should_synchronize_after_execute = False

    def __init__(self) -> None:
        self._pending: weakref.WeakSet[Staged] = weakref.WeakSet()

    def stage(self, state_dict: Any) -> Staged:
        """Gives the live state dict to the save; done when it was captured."""
        staged = Staged(state_dict, self)
        self._pending.add(staged)
        gate.watch(self)
        return staged

    def synchronize_staging(self) -> None:
        """Returns when every state dict may change. Failures are told by the saves themselves."""
        for staged in tuple(self._pending):
            staged.exception()

    def close(self) -> None:
        """As `synchronize_staging`; then optimizers are left alone."""
        self.synchronize_staging()
        gate.unwatch(self)

    def before_update(self, optimizer: Any, what: str = "step") -> None:
        """A torch optimizer is about to step."""
        if self._pending:
            self.synchronize_staging()
            self._pending.clear()

    def after_update(self, optimizer: Any, what: str = "step") -> None:
        """Nothing to do."""
