"""The save side as the user sees it. After construction and `restore()` nothing here stops a training run."""

from __future__ import annotations

import time
import warnings
from collections import deque
from typing import Any

from . import _errors, _lib, device, extra, gate, kept, rng
from . import agent as agents
from .drops import Drops
from .growth import Growth
from .identity import job_name, place
from .parts import Moved
from .quiet import gc_paused
from .restore import Restored, Restorer
from .retired import Retired
from .save import Save
from .selfcheck import SelfCheck, torn_sentence
from .session import PATHS, Session, error
from .state import State, Table, extra_text
from .underway import Underway

_CLOSE_TIMEOUT = 600.0
_MOST_DEFERRED = 1000  # steps; so many micro-batches of one update nobody has
_UNEXPORT_TIMEOUT = 30.0
_PREPARING = "a copier is being prepared"  # of libckpt: no reason yet


class Checkpointer:
    """Saves and restores `state`: dict, list or tuple of modules, optimizers, schedulers, loaders, tensors, live dicts.

    job: name of the run, the same over restarts; else $CKPTD_JOB.
    rank, world_size: else torch.distributed, RANK/WORLD_SIZE, Slurm, 0 of 1.
    every: save when the step is a multiple of it; None: only `save()`.
    agent: socket of the agent; "auto" starts one for this user when none answers. Where `/run/ckptd` is there, its
    agent has 10 s to come back first.
    storage: folder of an agent that "auto" starts.
    rng: include Python's, NumPy's and torch's generators.
    lazy: "auto" captures parameters and optimizer state beside the next forward and backward pass; "none": all in
    `step()`.
    selfcheck: "first", "always" or "off": prove that lazy tensors did not change before the gate.
    postmortem: when this process dies between two updates, or ends without close(), the agent's copier captures the
    last completed step from the GPU. Costs the copies of `step()` at every step, and a context on the GPU. Until
    `close()` this object and `state` stay in memory. Another one of the same job and rank in this process closes it,
    which is told: a capture that is under way is finished, and steps behind the last save are not captured any more.
    eager_host_limit: bytes of host tensors copied in `step()` in CUDA runs.
    gate_timeout: seconds that training waits for a capture at most; then the save is given up.
    gpu_path: "push": this process copies from its GPU; "pull": a process of the agent does, which needs a context of its
    own there; "auto": the one that costs training less.
    restart: start this job afresh although snapshots exist. Without restore() no step waits for ranks that are missing.
    on_error: "warn" (the first of a kind, then one an hour at most, of torn saves one a minute; training goes on) or
    "raise" (for tests).
    storages_stay: the promise that no storage of a host tensor is freed, resized or moved into shared memory between
    `step()` and the gate. It is read directly then, up to four times as fast; a broken promise kills the process.

    Raises ValueError for arguments that contradict each other, TypeError with the path for state that cannot be saved.
    """

    def __init__(
        self, state: Any, *, job: str | None = None, rank: int | None = None, world_size: int | None = None,
        every: int | None = None, agent: str | None = None, storage: str | None = None, rng: bool = True,
        lazy: str = "auto", selfcheck: str = "first", postmortem: bool = False, eager_host_limit: int = 64 << 20,
        gate_timeout: float | None = None, gpu_path: str = "push", restart: bool = False, on_error: str = "warn",
        storages_stay: bool = False,
    ) -> None:  # fmt: skip
        if on_error not in ("warn", "raise"):
            raise ValueError(f"on_error={on_error!r}: 'warn' or 'raise'")
        if every is not None and every < 1:
            raise ValueError(f"every={every}: at least 1, or None")
        if gpu_path not in PATHS:
            raise ValueError(f"gpu_path={gpu_path!r}: one of {', '.join(PATHS)}")
        self._every = every
        self._raise = on_error == "raise"
        self._with_generators = rng
        self._restart = restart
        self._check = SelfCheck(selfcheck)
        self._fired = gate.FiredHooks()
        self._underway = Underway()
        self._state = State(state, lazy, self._fired.has, eager_host_limit)
        self._document(self._state.survey())  # what cannot be saved is refused here, not at the first save
        where = place(rank, world_size)
        name = job_name(job)
        socket = agents.ensure(storage) if agent == "auto" else agent
        self._place = name, where.rank, socket
        self._session = Session(
            name, where.rank, where.world, socket, gate_timeout, gpu_path, postmortem, storages_stay, restart
        )
        kept.make_room(self._place, stacklevel=2)
        self._postmortem = postmortem
        self._rescue_told = False
        self._table: Table | None = None
        self._number = 0  # of its registration
        self._devices: list[int] = []  # GPUs of the newest table
        self._hooks_known = 0  # `changes` of the hooks when the table was made
        self._updates_seen = 0  # at the last step()
        self._versions = self._state.versions()
        self._patience = _MOST_DEFERRED
        self._deferred = 0  # steps since a save was due that waits for an update
        self._retired = Retired(self._session)
        self._pending: deque[Save] = deque(maxlen=4)
        self.restored = Restored()
        self._growth = Growth()
        self._drops = Drops()
        self.dropped = self._drops.counts  # saves that were dropped, by reason
        gate.watch(self)
        if postmortem:
            kept.keep(self._place, self)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        elif not self._postmortem:  # what an exception leaves behind can be captured
            if self._session.gate():
                warnings.warn(f"ckptd: {_lib.sentence()}", stacklevel=2)
            self.close(0)  # the agent writes without this process what was captured; the others may never come

    # ---- restore

    def restore(
        self, step: int | None = None, *, strict: bool = True, timeout: float = 120.0, connect_timeout: float = 10.0
    ) -> int:
        """Brings `state` back; collective in effect. Returns the completed steps, 0 only if nothing exists.

        step: exactly that one instead of the newest. strict=False: what fits is restored, `restored.skipped` tells the
        rest. timeout: seconds for the decision of all ranks. Reading what was decided takes as long as it takes; it is
        given up when nothing goes on for `timeout` (noticed within twice that). connect_timeout: seconds until an agent
        answers at all; one that is just being restarted is met, one that does not exist is told soon. Where the node
        has one, the user's own is asked only after it, or after half of `timeout`. In the main thread signals are
        handled meanwhile: Ctrl-C ends it, and it may be called again.

        Raises AgentUnreachable, NotFound, LayoutMismatch or RestoreError; never a silent 0.
        """
        self._begin_restore(step, strict, timeout, connect_timeout)
        return self._finish_restore()

    def _begin_restore(
        self, step: int | None = None, strict: bool = True, timeout: float = 120.0, connect_timeout: float = 10.0
    ) -> int:
        """The first half of `restore`, for frameworks that must know the step before they make optimizers."""
        self._session.require_alive()
        want = _lib.WANT_FRESH if self._restart else _lib.WANT_NEWEST if step is None else _lib.WANT_STEP
        self.release()
        self._restorer = Restorer(self._session, self._state, self._with_generators, strict)
        return self._restorer.begin(want, step or 0, timeout, connect_timeout)

    def _finish_restore(self) -> int:
        """The second half: everything that was saved must be in `state` by now."""
        self.restored = self._restorer.finish()
        self._underway.forget()
        self._versions = self._state.versions()
        if self.restored.step:
            for sentence in self._state.after_restart():
                warnings.warn(f"ckptd: {sentence}", stacklevel=3)
            self._guard(self._register)
        return self.restored.step

    # ---- save

    def step(self, n: int) -> Save | None:
        """n updates are complete, and everything in `state` stands for that. Starts a save when one is due.

        A step in which no optimizer of torch stepped (a micro-batch of an accumulation, gradients that a GradScaler
        found infinite) is no place to resume at: gradients are not saved. A save that is due then waits for the next
        step with an update.
        """
        if self._pending:
            self._review()
        due = self._deferred or (self._every is not None and n % self._every == 0)
        updates, self._updates_seen = self._updates_seen, self._fired.updates
        if due and not self._guard(self._defer, updates):
            return self._save(n)
        if self._session.alive:
            self._guard(self._tick, n, self._fired.sees_updates() and updates == self._fired.updates)
        return None

    def save(self, n: int) -> Save:
        """Starts a save now. The result tells how far it came; a dropped one says why."""
        self._review()
        return self._save(n)

    def _save(self, n: int) -> Save:
        began = time.perf_counter()
        found = self._guard(self._start, n)
        status, sentence = found or (-34, "the state could not be read; see the warning")
        save = Save(self._session, n, status, sentence, time.perf_counter() - began)
        if status and found:
            reason = _errors.code_name(status)
            grows = self._growth.sentence() if reason == "LAYOUT_PREPARING" else ""
            self._told(reason, grows or str(save.error), "size" if grows else "")
        elif status == 0:
            self._pending.append(save)
        return save

    def gate(self, stream: Any = None) -> None:
        """Returns when captured state may be changed: for code that updates tensors without a torch optimizer.

        stream: the CUDA stream that will change it, which then waits instead of the host; else the current one. Host
        memory is waited for on the host.
        """
        if gate.capturing():
            self._guard(self._told, "UNGATED", gate.GATE_IN_GRAPH)
        self._fired.updates += 1
        self._guard(self._gate, stream)

    def release(self) -> None:
        """Waits until nothing is being captured, then drops every reference to the state's memory."""
        self._guard(self._gate_host)
        self._guard(self._unexport)
        self._retire()
        self._retired.release()

    def close(self, timeout: float | None = None) -> bool:
        """Waits for the last save to be on storage, at most `timeout` seconds (None: ten minutes). False if it is not.

        A second call, and a call in a forked child, does nothing and returns True.
        """
        status = self._session.close(_CLOSE_TIMEOUT if timeout is None else timeout)
        gate.unwatch(self)  # not before: a signal may end the wait, and training go on
        kept.forget(self._place, self)
        self._table = None
        return status == 0

    @property
    def alive(self) -> bool:
        """False once it is closed, and in a forked child."""
        return self._session.alive

    # ---- hooks of torch.optim

    def before_update(self, optimizer: Any, what: str = "step") -> None:
        """An optimizer is about to step, or to switch to other weights."""
        self._underway.begin(optimizer, what)  # before the gate opens: what is saved behind it would be torn
        if gate.capturing() and self._fired.replay(optimizer):
            self._guard(self._told, "UNGATED", gate.IN_GRAPH.format(type(optimizer).__name__))
        self._guard(self._gate)

    def after_update(self, optimizer: Any, what: str = "step") -> None:
        """An optimizer has stepped, or switched, which is no step of training."""
        self._underway.end(optimizer, what)
        if what == "step":
            self._fired.note(optimizer)

    # ---- inside

    def _defer(self, updates_before: int) -> bool:
        """Whether a save that is due waits, because nothing was updated since `updates_before`."""
        self._mind_hooks()
        updated = updates_before != self._fired.updates
        if updated:
            self._patience = _MOST_DEFERRED
        if updated or self._updated_without_hook():
            self._deferred = 0
            return False
        self._deferred += 1
        if self._deferred <= self._patience:
            return True
        if self._patience:
            self._fired.forget()
            self._patience = 0
            sentence = f"no optimizer has stepped for {_MOST_DEFERRED} steps"
            self._told("UNGATED", f"{sentence}: everything is captured eagerly from now on")
        return False

    def _mind_hooks(self) -> None:
        if self._fired.lost():
            self._told("UNGATED", gate.HOOKS_LOST)

    def _updated_without_hook(self) -> bool:
        """Where hooks tell nothing: whether parameters may have been written, or there are no gradients to lose."""
        if self._fired.sees_updates():
            return False
        if self._fired.any():  # replays of a graph move no version
            return True
        before, self._versions = self._versions, self._state.versions()
        return before != self._versions or not self._state.has_gradients()

    def _gate(self, stream: Any = None) -> None:
        if not self._devices:
            self._gate_host()
        elif stream is not None:
            self._passed(self._session.gate([device.handle_of(stream)]))
        else:
            self._passed(self._session.gate([handle for _, handle in device.current_streams(self._devices)]))

    def _gate_host(self) -> None:
        self._passed(self._session.gate())

    def _passed(self, status: int) -> None:
        if status:
            self._told(_errors.code_name(status), _lib.sentence())

    def _unexport(self) -> None:
        self._passed(self._session.unexport(_UNEXPORT_TIMEOUT))

    def _tick(self, n: int, unchanged: bool) -> None:
        if unchanged or not self._postmortem:
            if self._table is None:
                self._register()  # the agent prepares memory before the first save is due
            self._session.tick(n, flags=_lib.UNCHANGED if unchanged else 0)
            return
        half_done = self._half_done(n)
        if half_done:
            self._told("REFUSED", half_done)
            return
        document = self._collect()
        status = self._session.use_streams(device.current_streams(self._devices))
        self._session.tick(n, document if status == 0 else None)

    def _review_rescue(self) -> None:
        """Says once why nothing can be captured post mortem."""
        why = self._session.info().rescue_why.decode("utf-8", "replace")
        if why in ("", _PREPARING):
            return
        self._rescue_told = True
        warnings.warn(f"ckptd: postmortem: {why}; when this process dies the last save counts", stacklevel=5)

    def _start(self, n: int) -> tuple[int, str]:
        if not self._session.alive:
            return -35, "the checkpointer is closed, or this is a forked child"
        half_done = self._half_done(n)
        if half_done:
            return -5, half_done
        self._mind_hooks()
        if self._postmortem and not self._rescue_told:
            self._review_rescue()
        document = self._collect()
        flags = _lib.SELFCHECK if self._check.due() else 0
        streams = device.current_streams(self._devices)
        status = self._session.use_streams(streams) if streams else 0
        status = status or self._session.save(n, document, flags)
        if status == 0:
            self._check.started()
            self._retired.captured()
            self._growth.ended()
        return status, _lib.sentence() if status else ""

    def _half_done(self, n: int) -> str:
        """Why step n cannot be captured now; empty unless an update is under way."""
        if not self._underway.any():
            return ""
        if self._table is None:
            self._register()
        return self._underway.sentence(n, self._state, self._table)

    def _collect(self) -> bytes:
        """The extra document of now; registers first when there is no layout, or something moved."""
        if self._table is not None and self._hooks_known == self._fired.changes:
            try:
                document = self._document(self._table)
                self._growth.ended()
                return document
            except Moved:
                pass
        return self._register()

    def _register(self) -> bytes:
        """Surveys the state and makes it the layout of this rank. Returns the extra document."""
        self._retire()
        self._hooks_known = self._fired.changes
        with gc_paused():
            table = self._state.survey()
            document = self._document(table)
            status = self._session.register(table, len(document))
        if status:
            raise error(status)
        self._table, self._devices = table, table.devices
        self._number = self._session.info().registered
        self._check.new_layout()
        self._growth.registered(table.columns)
        return document

    def _retire(self) -> None:
        if self._table is not None:
            self._retired.add(self._table, self._number)
        self._table = None

    def _document(self, table: Table) -> bytes:
        plain = table.refresh()
        generators = extra.dumps(rng.capture(), "rng") if self._with_generators else "null"
        return extra_text(plain, generators).encode("ascii")

    def _review(self) -> None:
        """Looks what became of the last saves, and tells of those that were dropped on the way."""
        for save in tuple(self._pending):
            state = save.state
            if state == "dropped":
                self._pending.remove(save)
                self._judge_drop(save)
            elif state == "durable":
                self._pending.remove(save)

    def _judge_drop(self, save: Save) -> None:
        reason = save.dropped_because or "INTERNAL"
        sentence = str(save.error)
        if reason == "TORN" and self._table is not None:
            columns = self._table.columns
            names = [columns[int(index)].name for index in self._session.torn() if index < len(columns)]
            sentence = f"step {save.step}: {torn_sentence(names)}"
            self._check.new_layout()
            if names:
                self._state.forced_eager.update(names)
                self._retire()
        self._told(reason, sentence)

    def _guard(self, function: Any, *arguments: Any) -> Any:
        """Training goes on whatever happens in here."""
        try:
            return function(*arguments)
        except Exception as failed:
            if self._raise:
                raise
            self._told(getattr(failed, "code", type(failed).__name__), f"{type(failed).__name__}: {failed}")
            return None

    def _told(self, reason: str, sentence: str, kind: str = "") -> None:
        """Counts, and warns now and then."""
        told = self._drops.note(reason, sentence, kind)
        if self._raise:
            failure = _errors.make(reason, sentence, _errors.SaveError)
            if " Next step: " in sentence:
                failure.args = (sentence,)
            raise failure
        if told:
            warnings.warn(told, stacklevel=4)
