"""A run of transformers.Trainer for the tests. Reports into `out`: "loss.<n>" lines, and final.json at the end."""

import contextlib
import hashlib
import json
import os
import signal
import time

import ckptd
import ckptd.hf
import torch
import transformers.trainer  # noqa: F401  (imported here, the tests' processes fork with it)
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from matrix.rows_wrappers import ScheduleFree
from matrix.trial import LateCopy

TIMES = ("runtime", "per_second")  # what no two runs have alike


class Tokens(torch.utils.data.Dataset):
    """Thirty sequences: eight batches of four an epoch, the last one of two."""

    def __init__(self, count, seed, masked=False):
        self.ids = torch.randint(32, (count, 12), generator=torch.Generator().manual_seed(seed))
        self.masked = masked

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        ids = self.ids[index]
        if self.masked:  # as a collator for masked language models does it
            ids = torch.where(torch.rand(12) < 0.3, torch.zeros(12, dtype=torch.int64), ids)
        return {"input_ids": ids, "labels": self.ids[index]}


class Recording(Trainer):
    """Writes what each micro-batch was, and its loss, at once."""

    out = None

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        seen = hashlib.sha256(inputs["input_ids"].numpy().tobytes()).hexdigest()[:12]
        with open(f"{self.out}/loss", "a") as file:
            print(self.state.global_step, self._micro(), seen, loss.item().hex(), file=file)
        return loss

    def _micro(self):
        step = self.state.global_step
        self.micro = self.micro + 1 if getattr(self, "at", None) == step else 0
        self.at = step
        return self.micro


class Killer(TrainerCallback):
    """Lets saves settle, since steps here are far shorter than a flush; ends the process at (event, global step)."""

    def __init__(self, cb, die, stop_agent):
        self.cb, self.die, self.stop_agent = cb, die, stop_agent

    def settle(self):
        for save in tuple(self.cb.checkpointer._pending):
            with contextlib.suppress(ckptd.SaveError):
                save.captured(20)
        if "LAYOUT_PREPARING" in self.cb.checkpointer.dropped:
            time.sleep(0.1)

    def here(self, event, step):
        if self.stop_agent and step == 3 and event == "step_end":
            os.kill(self.stop_agent, signal.SIGKILL)
        if not self.stop_agent and event in ("step_end", "epoch_end"):
            self.settle()
        if self.die == [event, step]:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_step_begin(self, args, state, control, **kwargs):
        self.here("step_begin", state.global_step)

    def on_substep_end(self, args, state, control, **kwargs):
        self.here("substep_end", state.global_step)

    def on_step_end(self, args, state, control, **kwargs):
        self.here("step_end", state.global_step)

    def on_evaluate(self, args, state, control, **kwargs):
        self.here("evaluate", state.global_step)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.here("epoch_end", state.global_step)


class Late(TrainerCallback):
    """What is saved at this event is copied as late as the contract allows."""

    def __init__(self):
        self.late = LateCopy()

    def on_step_begin(self, args, state, control, **kwargs):
        self.late.begin()


def arguments(out, **more):
    options = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "num_train_epochs": 3,
        "learning_rate": 0.01,
        "logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "lr_scheduler_type": "cosine", "warmup_steps": 2,
        "metric_for_best_model": "loss", "save_strategy": "no", "report_to": [], "use_cpu": True, "seed": 7,
        "disable_tqdm": True, **more,
    }  # fmt: skip
    return TrainingArguments(output_dir=f"{out}/trainer", **options)


def model():
    torch.manual_seed(3)
    size = {"vocab_size": 32, "n_positions": 16, "n_embd": 16, "n_layer": 2, "n_head": 2}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))


def digest(trainer):
    tensors = dict(trainer.model.state_dict())
    for index, state in enumerate(trainer.optimizer.state.values()):
        tensors.update({f"{index}.{key}": value for key, value in state.items()})
    held = {name: value.numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode()
            for name, value in tensors.items()}  # fmt: skip
    data = {name: hashlib.sha256(value).hexdigest()[:12] for name, value in held.items()}
    return {**data, "rng": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()}


def without_times(entry):
    return {key: value for key, value in entry.items() if not key.endswith(TIMES)}


def misuse(out, how, job):
    """Writes the sentence with which a wrong use is refused."""
    cb = ckptd.hf.TrainerCallback(job=job, every=1)
    more = {"ignored": {"ignore_data_skip": True}, "searched": {"auto_find_batch_size": True}}.get(how, {})
    trainer = Trainer(
        model(), arguments(out, max_steps=3, **more), train_dataset=Tokens(30, 1), eval_dataset=Tokens(6, 2),
        callbacks=[] if how == "not given" else [cb],
    )  # fmt: skip
    if how == "held":
        cb._more = {"more": {"x": object()}}
    try:
        if how == "not resumed":
            trainer.train()
        elif how == "not passed on":
            cb.resume(trainer, 30, 3)
            trainer.train()
        else:
            trainer.train(resume_from_checkpoint=cb.resume(trainer, 30, 1))
    except Exception as error:
        with open(f"{out}/refused", "w") as file:
            file.write(f"{type(error).__name__}: {error}")


def main(out, save=True, die=None, every=1, stop_agent=0, more=None, how=None, job="hf"):
    if how:
        return misuse(out, how, job)
    Recording.out = out
    more = dict(more or {})
    data, net = Tokens(30, 1, more.pop("masked", False)), model()
    late = {"selfcheck": "off"} if more.pop("late", False) else {}  # it would find what the gate has let through
    optimizer = ScheduleFree(net.parameters(), lr=0.5) if more.pop("schedule_free", False) else None
    cb = ckptd.hf.TrainerCallback(job=job, every=every, **late)
    stopper = EarlyStoppingCallback(early_stopping_patience=9)
    trainer = Recording(
        net, arguments(out, **more), train_dataset=data, eval_dataset=Tokens(6, 2), optimizers=(optimizer, None),
        callbacks=[stopper, *([Late()] if late else []), *([cb, Killer(cb, die, stop_agent)] if save else [])],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=cb.resume(trainer, 30, 3) if save else None)
    report = {
        "tensors": digest(trainer),
        "sched": trainer.lr_scheduler.state_dict(),
        "log": [without_times(entry) for entry in trainer.state.log_history],
        "state": {key: getattr(trainer.state, key) for key in ("epoch", "global_step", "best_metric", "total_flos")},
        "patience": stopper.early_stopping_patience_counter,
    }
    ck = cb.checkpointer
    told = {"restored": [ck.restored.step, ck.restored.source], "dropped": dict(ck.dropped)} if save else {}
    with open(f"{out}/final.json", "w") as file:
        json.dump({"report": report, **told}, file)
