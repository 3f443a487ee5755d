"""transformers.Trainer, killed at any moment, goes on with the bits it would have had.

    cb = ckptd.hf.TrainerCallback(job="ft", every=50)
    trainer = Trainer(model=model, args=args, train_dataset=data, callbacks=[cb])
    trainer.train(resume_from_checkpoint=cb.resume(trainer))

The Trainer decides where it starts before it has made optimizer and scheduler, so a restore comes in two halves.
`resume` asks the agent, and writes the Trainer's own state into a folder of a few kilobytes: from it the Trainer takes
step, log history and best metric, and skips the batches that were trained. `on_train_begin` then fills the tensors.

A step is saved at the first event after its log, evaluation and save: when the next step or epoch begins. So a resumed
run does not miss an evaluation, nor do it twice. The generators are those of that moment, and are set there again:

    event of the Trainer   fresh                         resumed
    on_epoch_begin         save; note the generators     those of the epoch's beginning: its order is drawn again
    (makes the iterator, skips, fetches the batches of one step: `_Fetches`)
    on_step_begin          save                          those of the save
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections import deque
from collections.abc import Iterator
from typing import Any

import transformers
from transformers.trainer_callback import ExportableState

from . import rng
from .batches import generator_states, make_generators, own_states, set_generator_states
from .checkpointer import Checkpointer
from .identity import job_name

_STATE_FILE = "trainer_state.json"
_OWN_WAY = ("log_history", "stateful_callbacks")  # fields of TrainerState that are saved otherwise


class TrainerCallback(transformers.TrainerCallback):
    """Saves each `every` steps to the agent of this node; `resume` goes on from there.

    job: name of the run, the same over restarts; else $CKPTD_JOB. every: global steps between saves. state: more that
    shall be saved with the step (dict, list or object with state_dict and load_state_dict). options: of
    `ckptd.Checkpointer`.

    `checkpointer` is the Checkpointer after `resume`: `.restored` and `.dropped` tell what happened.
    """

    def __init__(self, job: str | None = None, every: int = 50, state: Any = None, **options: Any) -> None:
        if every < 1:
            raise ValueError(f"every={every}: at least 1")
        self.checkpointer: Checkpointer | None = None
        self._options = {"job": job_name(job), "every": every, **options}
        self._more = {} if state is None else {"more": state}
        self._root: dict[str, Any] = {}
        self._run: _Run | None = None
        self._begun = False
        self._start = 0  # step that the agent gave
        self._last = 0  # step that was saved or passed over last
        self._resumed: dict[str, Any] | None = None  # generators, until the resumed run is where they were saved

    # ---- before training

    def resume(
        self, trainer: transformers.Trainer, timeout: float = 120.0, connect_timeout: float = 10.0
    ) -> str | None:
        """What `trainer.train(resume_from_checkpoint=...)` is to be given: a folder, or None for a fresh start.

        timeout: seconds for the decision of all ranks, not for reading what was decided; connect_timeout: until an agent answers. Raises AgentUnreachable
        or RestoreError, and ValueError for a Trainer that could not go on exactly.
        """
        self._refuse(trainer)
        self._root = {}
        self.checkpointer = Checkpointer(self._root, **self._options)
        self._run = _Run(trainer)
        self._begun, self._resumed = False, None
        self._start = self.checkpointer._begin_restore(timeout=timeout, connect_timeout=connect_timeout)
        if not self._start:
            return None
        saved = self.checkpointer._restorer.plain().get("trainer")
        if saved is None:
            job = self._options["job"]
            raise ValueError(f"job {job}: step {self._start} was not saved by ckptd.hf; use another job")
        self._folder = tempfile.TemporaryDirectory(prefix="ckptd-resume-")
        with open(os.path.join(self._folder.name, _STATE_FILE), "w", encoding="utf-8") as file:
            json.dump(trainer_state(saved), file, default=float)
        _load_no_weights(trainer, self._folder.name)
        return self._folder.name

    def _refuse(self, trainer: transformers.Trainer) -> None:
        if self not in trainer.callback_handler.callbacks:
            raise ValueError("ckptd.hf: this callback is not the Trainer's: Trainer(..., callbacks=[cb])")
        args = trainer.args
        if args.ignore_data_skip:
            raise ValueError("ckptd.hf: ignore_data_skip=True trains on other batches after a restart; leave it off")
        if args.auto_find_batch_size:
            raise ValueError("ckptd.hf: auto_find_batch_size=True begins anew with other batches; give a size")
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise ValueError("ckptd.hf: DeepSpeed and FSDP keep tensors of their own; not in this release")

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Model, optimizer and schedule exist now: the second half of the restore."""
        ck, run = self.checkpointer, self._run
        if ck is None or run is None or self._begun:
            raise RuntimeError("ckptd.hf: write trainer.train(resume_from_checkpoint=cb.resume(trainer))")
        if state.global_step != self._start:
            raise RuntimeError(
                f"ckptd.hf: the Trainer begins at step {state.global_step}, the agent restored step {self._start}; "
                "write trainer.train(resume_from_checkpoint=cb.resume(trainer))"
            )
        self._begun = True
        trainer = run.trainer
        self._root.update(model=trainer.model, optim=trainer.optimizer, sched=trainer.lr_scheduler, trainer=run)
        if getattr(trainer.accelerator, "scaler", None) is not None:
            self._root["scaler"] = trainer.accelerator.scaler
        self._root.update(self._more)
        ck._document(ck._state.survey())  # what cannot be saved is refused before the first step
        ck._finish_restore()
        self._last = self._start
        run.watch(kwargs.get("train_dataloader"))
        if self._start:
            self._resumed = run.generators()
            self._folder.cleanup()

    # ---- while training

    def on_epoch_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **kwargs: Any) -> None:
        """Between two epochs, or at the beginning of the one that is resumed."""
        run = self._run
        assert run is not None
        run.loader = train_dataloader
        make_generators(train_dataloader)
        if self._resumed is not None:
            run.set_generators(run.epoch_start if self._resumed["inside"] else self._resumed)
            if self._resumed["inside"]:
                return
            self._resumed = None
        run.inside = False
        self._step(state.global_step)
        run.epoch_start = run.generators()
        run.inside = True

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The batches of the next step have been fetched; nothing was computed on them."""
        if self._resumed is not None:
            self._run.set_generators(self._resumed)  # type: ignore[union-attr]
            self._resumed = None
        self._step(state.global_step)

    def _step(self, step: int) -> None:
        if step != self._last and self.checkpointer is not None:
            self._last = step
            self.checkpointer.step(step)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits until the last save is on storage."""
        if self.checkpointer is not None:
            self.checkpointer.close()


class _Run:
    """What a Trainer keeps beside its tensors, as an object of `state`."""

    def __init__(self, trainer: transformers.Trainer) -> None:
        self.trainer = trainer
        self.loader: Any = None
        self.inside = False  # of an epoch: its iterator has been made
        self.epoch_start: dict[str, Any] | None = None  # generators before the iterator of the epoch was made
        self._own: list[Any] = []
        self._fetches: _Fetches | None = None
        self._again: dict[int, Any] = {}  # generators before fetches that a resumed run does again
        self._lines: list[str] = []  # the log history as JSON

    def generators(self) -> dict[str, Any]:
        """States of the global generators, and of those that the loader holds."""
        own = own_states(self.loader) if self.loader is not None else self._own
        return {"global": rng.capture(), "own": own, "inside": self.inside}

    def set_generators(self, states: dict[str, Any]) -> None:
        """Inverse of `generators`, once the loader is known."""
        set_generator_states(self.loader, states)

    def watch(self, loader: Any) -> None:
        """Notes the generators before each fetch: a dataset or a collator may draw from them in this process."""
        inner = getattr(loader, "base_dataloader", None)
        if inner is None or inner.num_workers or inner.batch_sampler is None:
            return
        accumulated = self.trainer.args.gradient_accumulation_steps
        self._fetches = _Fetches(inner.batch_sampler, loader, accumulated, self._again)
        inner.__dict__["batch_sampler"] = self._fetches  # past DataLoader.__setattr__

    def _begun(self) -> list[Any]:
        """[number of the batch, generators before its fetch] of the two fetches with which a resumed run begins: the
        first was done a step earlier, by accelerate; from the second on they follow each other."""
        if self._fetches is None or not self.inside:
            return []
        accumulated = self.trainer.args.gradient_accumulation_steps
        done = self.trainer.state.global_step % -(-len(self.loader) // accumulated) * accumulated
        return [list(item) for item in self._fetches.before if item[0] in (done + 1, done + 2)]

    def state_dict(self) -> dict[str, Any]:
        """Plain values only. The history is encoded once an entry: it grows with the run."""
        trainer, state = self.trainer, self.trainer.state
        del self._lines[len(state.log_history) :]
        self._lines += [json.dumps(entry, default=float) for entry in state.log_history[len(self._lines) :]]
        fields = [field.name for field in dataclasses.fields(state) if field.name not in _OWN_WAY]
        loss = getattr(trainer, "_tr_loss", None)
        return {
            "state": {name: getattr(state, name) for name in fields},
            "log": "\n".join(self._lines),
            "callbacks": [[type(item).__name__, item.state()["attributes"]] for item in self._callbacks()],
            "loss": None if loss is None else loss.item(),
            "counters": {name: getattr(trainer, name) for name in _COUNTERS if hasattr(trainer, name)},
            "epoch_start": self.epoch_start,
            "own": self.generators()["own"],
            "inside": self.inside,
            "fetches": self._begun(),
        }

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """What the Trainer does not take from the folder."""
        found = self._callbacks()
        if [type(item).__name__ for item in found] != [name for name, _ in saved["callbacks"]]:
            names = [name for name, _ in saved["callbacks"]]
            raise ValueError(f"the callbacks with a state were {names}; give them again")
        for item, (_, attributes) in zip(found, saved["callbacks"]):
            for name, value in attributes.items():
                setattr(item, name, value)
        if saved["loss"] is not None and hasattr(self.trainer, "_tr_loss"):
            self.trainer._tr_loss.fill_(saved["loss"])
        for name, value in saved["counters"].items():
            setattr(self.trainer, name, value)
        self.epoch_start, self._own, self.inside = saved["epoch_start"], saved["own"], saved["inside"]
        self._again = dict(saved["fetches"])

    def _callbacks(self) -> list[Any]:
        return [item for item in self.trainer.callback_handler.callbacks if isinstance(item, ExportableState)]


class _Fetches:
    """A batch sampler that notes the generators before each fetch, and sets them again in a run that resumes."""

    def __init__(self, sampler: Any, loader: Any, accumulated: int, again: dict[int, Any]) -> None:
        self._sampler = sampler
        self._loader = loader
        self._again = again
        self.before: deque[tuple[int, Any]] = deque(maxlen=accumulated + 2)  # (number in the epoch, states)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_sampler":
            raise AttributeError(name)
        return getattr(self._sampler, name)

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[Any]:
        self.before.clear()
        for number, indices in enumerate(self._sampler, 1):
            if number in self._again:
                set_generator_states(self._loader, self._again.pop(number))
            self.before.append((number, generator_states(self._loader)))
            yield indices


# Sums over the steps since the last log, or since the beginning: without them a resumed run logs other means.
_COUNTERS = (
    "_total_loss_scalar", "_globalstep_last_logged", "_initial_global_step", "_initial_num_input_tokens_seen",
    "current_flos",
)  # fmt: skip


def trainer_state(saved: dict[str, Any]) -> dict[str, Any]:
    """The content of trainer_state.json for what `_Run.state_dict` gave."""
    history = [json.loads(line) for line in saved["log"].splitlines()]
    return {**saved["state"], "log_history": history, "stateful_callbacks": {}}


def _load_no_weights(trainer: transformers.Trainer, folder: str) -> None:
    """`folder` holds no model: the Trainer, which insists on one, takes the tensors from the callback."""
    load = trainer._load_from_checkpoint

    def from_elsewhere(resume_from_checkpoint: str, *args: Any, **kwargs: Any) -> Any:
        return None if resume_from_checkpoint == folder else load(resume_from_checkpoint, *args, **kwargs)

    trainer._load_from_checkpoint = from_elsewhere
