"""In-memory saves for Lightning's Trainer, and a resume that is exact in the middle of an epoch.

A step is saved when the next batch has been fetched: at `on_train_batch_start`, after validation, schedulers and
loggers of the step before. A run that resumes lets Lightning's own restart logic arrive at the same call, for the same
batch, and then makes every counter and metric what it was:

    on_fit_start            restores tensors, schedulers, callbacks; tells the loops where to begin
    the training loader     begins at that batch; its order is drawn again (lightning_loader.py)
                            with the generators as they were before it was fetched
    on_train_batch_start    loops and metrics as they were saved
    on_train_batch_end      means that `self.log(..., on_epoch=True)` had begun to sum are continued
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from .checkpointer import Checkpointer
from .identity import job_name
from .lightning_base import pl
from .lightning_loader import Loader
from .lightning_state import TrainerState

_OWN_SHARDS = ("FSDPStrategy", "DeepSpeedStrategy", "ModelParallelStrategy", "XLAFSDPStrategy")


class Callback(pl.Callback):
    """Saves each `every` global steps to the agent of this node; `fit` goes on from there by itself.

    job: name of the run, the same over restarts; else $CKPTD_JOB. every: optimizer steps between saves. state: more
    that shall be saved with the step. timeout, connect_timeout: seconds, of `Checkpointer.restore`. options: of
    `ckptd.Checkpointer`.

    `checkpointer` is the Checkpointer of the running `fit`: `.restored` and `.dropped` tell what happened.
    """

    def __init__(
        self, job: str | None = None, every: int = 50, state: Any = None, timeout: float = 120.0,
        connect_timeout: float = 10.0, **options: Any,
    ) -> None:  # fmt: skip
        if every < 1:
            raise ValueError(f"every={every}: at least 1")
        self.checkpointer: Checkpointer | None = None
        self.every = every
        self._options = {"job": job_name(job), **options}
        self._more = {} if state is None else {"more": state}
        self._timeouts = {"timeout": timeout, "connect_timeout": connect_timeout}
        self._run: TrainerState | None = None
        self._last = 0  # step that was saved or passed over last
        self._resuming = False  # until the run is where it was saved

    # ---- before training

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Takes the first place among the callbacks, and sees the training loader before its iterator is made."""
        if stage != "fit":
            return
        trainer.callbacks = [self, *(item for item in trainer.callbacks if item is not self)]
        process = trainer.strategy.process_dataloader

        def seen(loader: Any) -> Any:
            found = process(loader)
            if not trainer.training:
                return found
            found = Loader(found)
            if self._run is not None and self._run.position is not None:
                found.resume_at(self._run.position)
            return found

        trainer.strategy.process_dataloader = seen

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Everything that has a state exists now."""
        self._refuse(trainer, pl_module)
        self._run = TrainerState(trainer, pl_module)
        schedules = [config.scheduler for config in trainer.lr_scheduler_configs]
        root = {"model": pl_module, "optim": list(trainer.optimizers), "sched": schedules, "trainer": self._run}
        self.checkpointer = Checkpointer({**root, **self._more}, **self._options)
        self._last = self.checkpointer.restore(**self._timeouts)
        self._resuming = self._last > 0
        if not self._resuming:
            return
        if trainer.ckpt_path is not None:
            raise ValueError(
                f"ckptd.lightning: job {self._options['job']} goes on from step {self._last}; leave ckpt_path away, or "
                "give another job a name of its own"
            )
        warnings.filterwarnings("ignore", "You're resuming from a checkpoint that ended before")  # the loader resumes

    def _refuse(self, trainer: Any, pl_module: Any) -> None:
        strategy = type(trainer.strategy).__name__
        if strategy in _OWN_SHARDS:
            raise ValueError(f"ckptd.lightning: {strategy} keeps shards of its own; not in this release")
        if "dataloader_iter" in inspect.signature(pl_module.training_step).parameters:
            raise ValueError("ckptd.lightning: a training_step(dataloader_iter) fetches unseen; take the batch instead")

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The loader is known now."""
        loader = trainer.train_dataloader
        if not isinstance(loader, Loader):
            raise ValueError("ckptd.lightning: one training loader can be resumed, not several; join their datasets")
        assert self._run is not None
        self._run.loader = loader

    # ---- while training

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Between two steps: the batch was fetched, and nothing computed on it."""
        run, ck = self._run, self.checkpointer
        if run is None or ck is None:
            return
        if self._resuming:
            run.settle()
            self._resuming = False
        step = trainer.global_step
        if step == self._last:  # in the middle of an accumulation
            return
        due = step // self.every > self._last // self.every
        self._last, run.batch = step, batch_idx
        if due:
            ck.save(step)
        else:
            ck.step(step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Sums over the epoch, begun before the restart, are continued."""
        if self._run is not None:
            self._run.merge_sums()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """WeightAveraging, behind this one, puts the average into the module meanwhile."""
        self._gate_of_average(trainer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The same, for good."""
        self._gate_of_average(trainer)

    def _gate_of_average(self, trainer: Any) -> None:
        kinds = getattr(pl.callbacks, "WeightAveraging", ())  # since 2.6
        if self.checkpointer is not None and any(isinstance(item, kinds) for item in trainer.callbacks):
            self.checkpointer.gate()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Waits until the last save is on storage."""
        if stage == "fit" and self.checkpointer is not None:
            trainer.strategy.__dict__.pop("process_dataloader", None)
            self.checkpointer.close()
            self._run = None
