"""Lightning's checkpoints through the agent: `save_checkpoint` returns when the state is copied into memory.

    trainer = Trainer(plugins=[ckptd.lightning.CheckpointIO(job="ft-checkpoints")], callbacks=[ModelCheckpoint(...)])

**What a path is.** The agent knows steps of a job, and they only grow. Each `save_checkpoint` is the next step of
`job`, pinned so that retention leaves it alone; at `path` lies a small text file that names job and step. So paths may
be listed, linked, overwritten and removed as ever, in any number and order, and any process that reaches the agent of this
node can load one: from memory or from storage, also after the trainer died. To remove a path is to unpin its step;
retention then deletes it. A copied text file does not keep the step alive, and a path that is moved to another node
loads only where the agent has the same storage.

One checkpoint at a time is on its way to the storage: the next `save_checkpoint` waits for the one before it. When the
agent cannot take one, it is written to `path` by torch.save, as Lightning does it, and that is told.

The job belongs to this process: ranks other than 0 do not save. Give it a name of its own, not the one of
`ckptd.lightning.Callback`.
"""

from __future__ import annotations

import json
import os
import pathlib
import tempfile
import time
import warnings
from typing import Any

from . import _errors, _lib, leaves
from .identity import job_name
from .lightning_base import TorchCheckpointIO
from .open import File
from .restore import Restorer
from .save import Save
from .session import Session
from .state import State, extra_text
from .status import ctl

_FORMAT = "ckptd.lightning/1"
_ROOT = "checkpoint"
_AGAIN = ("LAYOUT_PREPARING", "NO_FREE_SLOT", "BUSY", "MOVED", "INTERRUPTED")  # reasons that pass by themselves


class CheckpointIO(TorchCheckpointIO):
    """For `Trainer(plugins=[...])` and Fabric. Loads checkpoints that were written without it, too.

    job: name of the checkpoints' job, the same over restarts; else $CKPTD_JOB. socket: of the agent. patience: seconds
    that a save waits for memory of the agent, and for the storage of the checkpoint before.
    """

    def __init__(self, job: str | None = None, socket: str | None = None, patience: float = 600.0) -> None:
        super().__init__()
        self._job = job_name(job)
        self._socket = socket
        self._patience = patience
        self._session: Session | None = None
        self._step = 0
        self._pending: tuple[Save, str] | None = None

    # ---- Lightning's interface

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Returns when `checkpoint` is in the agent's memory; what it holds may change then."""
        if storage_options is not None:
            raise TypeError("ckptd.lightning: storage_options have no meaning for an agent; leave them away")
        before = read_pointer(path)
        try:
            self._settle()
            self._store(checkpoint, str(path))
            self._point(path)
        except (_errors.CkptdError, OSError, TypeError, ValueError) as failed:
            warnings.warn(f"ckptd: {path} is written by torch.save: {failed}", stacklevel=2)
            super().save_checkpoint(checkpoint, path)
        self._unpin(before)

    def load_checkpoint(
        self, path: Any, map_location: Any = None, weights_only: bool | None = None, **kwargs: Any
    ) -> Any:
        """What was saved at `path`. weights_only=False: also objects that had to be pickled, which may run any code.

        map_location: a device, or a dict of devices; otherwise tensors come back on the CPU. Raises NotFound when the
        step is gone, AgentUnreachable when nobody can say.
        """
        pointer = read_pointer(path)
        if pointer is None:
            given = {"map_location": map_location, "weights_only": weights_only}
            return super().load_checkpoint(path, **{key: value for key, value in given.items() if value is not None})
        with tempfile.TemporaryDirectory(prefix="ckptd-load-") as folder:
            self._ctl("restore", f"{pointer['job']}@{pointer['step']}", "--to", f"{folder}/step")
            (found,) = pathlib.Path(folder, "step").rglob("*.safetensors")
            return leaves.unpacked(File(found).plain()[_ROOT], map_location, weights_only)

    def remove_checkpoint(self, path: Any) -> None:
        """Unpins the step and removes the path. One that does not exist is left so, as Lightning does it."""
        pointer = read_pointer(path)
        if pointer is not None and not os.path.islink(path):
            self._unpin(pointer)
        super().remove_checkpoint(path)

    def teardown(self) -> None:
        """Waits for the last checkpoint to be on storage, and gives the job free."""
        self._settle()
        if self._session is not None:
            self._session.close(0)
            self._session = None
        super().teardown()

    # ---- inside

    def _settle(self) -> None:
        """The checkpoint before is on storage, or it is told that it is not."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        save, path = pending
        try:
            kept = save.durable(self._patience)
            why = f"not on storage after {self._patience:.0f} s"
        except _errors.CkptdError as failed:
            kept, why = False, str(failed)
        if not kept:
            warnings.warn(f"ckptd: {path} is in memory only: {why}", stacklevel=3)

    def _store(self, checkpoint: dict[str, Any], path: str) -> None:
        """The next step of the job holds `checkpoint`; its last failure when that does not come about in time."""
        session = self._joined()
        state = State({_ROOT: leaves.packed(checkpoint)}, lazy="none")
        deadline = time.monotonic() + self._patience
        while True:
            save = self._attempt(session, state)
            try:
                if save.captured(max(0.1, deadline - time.monotonic())):
                    self._pending = save, path
                    return
                raise _errors.make("TIMEOUT", f"{path}: not captured in time", _errors.SaveError)
            except _errors.SaveError as failed:
                if getattr(failed, "code", "") not in _AGAIN or time.monotonic() > deadline:
                    raise
            time.sleep(0.005)

    def _attempt(self, session: Session, state: State) -> Save:
        table = state.survey()
        document = extra_text(table.refresh(), "null").encode("ascii")
        self._step += 1  # also after a failure: steps only grow
        status = session.register(table, len(document)) or session.save(self._step, document, 0)
        return Save(session, self._step, status, _lib.sentence() if status else "", 0.0)

    def _point(self, path: Any) -> None:
        """Pins the step that was just saved, and lets `path` name it."""
        self._ctl("pin", f"{self._job}@{self._step}")
        try:
            write_pointer(path, self._job, self._step)
        except OSError:
            self._unpin({"job": self._job, "step": self._step})
            raise

    def _joined(self) -> Session:
        """The job is ours, and the newest step of it is known; nothing of it is loaded."""
        if self._session is None:
            session = Session(self._job, 0, 1, self._socket, None)
            patience = min(self._patience, 60.0)
            joining = Restorer(session, State({}), False, False)
            self._step = joining.run(_lib.WANT_NEWEST, 0, patience, min(patience, 10.0)).step
            self._session = session
        return self._session

    def _unpin(self, pointer: dict[str, Any] | None) -> None:
        if pointer is not None:
            try:
                self._ctl("unpin", f"{pointer['job']}@{pointer['step']}")
            except _errors.CkptdError as failed:
                warnings.warn(f"ckptd: step {pointer['step']} of {pointer['job']} stays pinned: {failed}", stacklevel=3)

    def _ctl(self, *arguments: str) -> None:
        ctl(*arguments, socket=self._socket)


def read_pointer(path: Any) -> dict[str, Any] | None:
    """Job and step that `path` names; None when it is something else, or not there."""
    try:
        with open(path, "rb") as file:
            text = file.read(4096)
        found = json.loads(text) if text.startswith(b"{") else None
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("format") == _FORMAT else None


def write_pointer(path: Any, job: str, step: int) -> None:
    """Makes `path` name a step, at once or not at all, also for who looks after a power loss."""
    target = pathlib.Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    with beside.open("w") as file:
        file.write(json.dumps({"format": _FORMAT, "job": job, "step": step}) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, target)
