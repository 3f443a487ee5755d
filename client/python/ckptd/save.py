"""A save that was started, and how far it came."""

from __future__ import annotations

from . import _errors, _lib
from .session import TIMEOUT, Session, StepState

_LEVELS = (("durable", _lib.DURABLE), ("protected", _lib.PROTECTED), ("captured", _lib.CAPTURED))


class Save:
    """Returned by `step()` and `save()`. Ask it, or ignore it: the checkpointer tells of failures as well."""

    def __init__(self, session: Session, step: int, refused: int, sentence: str, blocked: float) -> None:
        self.step = step
        self._session = session
        self._refused = refused
        self._sentence = sentence
        self._blocked = blocked
        self._last = StepState(_lib.DROPPED if refused else 0, refused, 0.0, 0)

    def __repr__(self) -> str:
        return f"<Save of step {self.step}: {self.state}{f' ({self.dropped_because})' if self.dropped_because else ''}>"

    def _now(self) -> StepState:
        found = None if self._refused else self._session.poll(self.step)
        if found is not None:
            self._last = found
        return self._last

    @property
    def state(self) -> str:
        """ "capturing", "captured" (in this node's memory on every rank), "protected", "durable" or "dropped"."""
        flags = self._now().flags
        if flags & _lib.DROPPED:
            return "dropped"
        return next((name for name, level in _LEVELS if flags & level), "capturing")

    @property
    def dropped_because(self) -> str | None:
        """Name of the error, as in the table of errors ("NO_FREE_SLOT"); None unless dropped."""
        now = self._now()
        return _errors.code_name(now.code) if now.flags & _lib.DROPPED else None

    @property
    def error(self) -> Exception | None:
        """The SaveError of a dropped save, None otherwise."""
        name = self.dropped_because
        return self._failure(name) if name else None

    def _failure(self, name: str) -> Exception:
        sentence = self._sentence or f"the save of step {self.step} was dropped: {name}"
        return _errors.make(name, sentence, _errors.SaveError)

    @property
    def blocked_seconds(self) -> float:
        """Time that training waited for this save: inside `step()` and at the gate."""
        return self._blocked + max(0.0, self._now().blocked_seconds - self._blocked)

    @property
    def eager_bytes(self) -> int:
        """Bytes that were copied before `step()` returned."""
        return self._now().eager_bytes

    def captured(self, timeout: float | None = None) -> bool:
        """Waits until the step is in this node's memory on every rank. SaveError when it was dropped.

        timeout: seconds; None: as long as it takes. False when they are over: nothing is given up by that, the capture
        goes on, and it may be asked again. `gate_timeout` counts where an update waits, not here.
        Who waits changes nothing of `state` meanwhile: a promise, as of who calls `gate()`. The next update waits at
        its own gate all the same."""
        return self._wait(_lib.CAPTURED, timeout)

    def protected(self, timeout: float | None = None) -> bool:
        """Waits until the step survives the loss of nodes; otherwise as `captured`."""
        return self._wait(_lib.PROTECTED, timeout)

    def durable(self, timeout: float | None = None) -> bool:
        """Waits until the step is committed on storage; otherwise as `captured`. SaveError as well when it stays in
        memory only, because a newer one took its place."""
        return self._wait(_lib.DURABLE, timeout)

    def _wait(self, level: int, timeout: float | None) -> bool:
        # No gate: that has a deadline of its own, gives the capture up at it, and announces an update.
        status = self._refused or self._session.wait(self.step, level | _lib.STILL, timeout)
        if status == 0:
            return True
        if status == TIMEOUT:
            return False
        self._sentence = self._sentence or _lib.sentence()
        raise self._failure(_errors.code_name(status))
