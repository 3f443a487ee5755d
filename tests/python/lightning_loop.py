"""A run of Lightning's Trainer for the tests. Reports into `out`: "loss" lines, and final.json at the end."""

import contextlib
import hashlib
import json
import logging
import os
import signal
import time
import warnings

import ckptd
import ckptd.lightning
import torch
from ckptd.lightning_base import pl
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    """Twenty-two items, with noise that is drawn when they are loaded."""

    def __init__(self, count=22, seed=11, noisy=True):
        generator = torch.Generator().manual_seed(seed)
        self.x, self.y = torch.randn(count, 8, generator=generator), torch.randint(4, (count,), generator=generator)
        self.noisy = noisy

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index] + (0.1 * torch.randn(8) if self.noisy else 0), self.y[index]


class Stream(torch.utils.data.IterableDataset):
    """The same without a length."""

    def __iter__(self):
        items = Items()
        return (items[index] for index in range(22))


class Net(pl.LightningModule):
    """Dropout, BatchNorm; means over the epoch; a counter of its own; a schedule and a plateau."""

    def __init__(self, out, manual=False):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 4))
        self.out, self.seen, self.epochs = out, 0, []
        self.automatic_optimization = not manual

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = nn.functional.cross_entropy(self.body(x), y)
        self.seen += len(x)
        self.log("loss", loss, on_step=True, on_epoch=True)
        self.log("most", loss.detach(), on_step=False, on_epoch=True, reduce_fx="max")
        self.write(batch_idx, x, loss)
        if not self.automatic_optimization:
            self.by_hand(loss)
        return loss

    def by_hand(self, loss):
        """Two optimizers that take turns."""
        first, second = self.optimizers()
        optimizer = first if self.trainer.global_step % 3 else second
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()

    def write(self, batch_idx, x, loss):
        seen = hashlib.sha256(x.numpy().tobytes()).hexdigest()[:12]
        with open(f"{self.out}/loss", "a") as file:
            print(self.current_epoch, batch_idx, self.trainer.global_step, seen, loss.item().hex(), file=file)

    def validation_step(self, batch, batch_idx):
        x, y = batch
        self.log("val", nn.functional.cross_entropy(self.body(x), y))

    def on_train_epoch_end(self):
        self.epochs.append({key: value.item().hex() for key, value in self.trainer.callback_metrics.items()})

    def on_save_checkpoint(self, checkpoint):
        checkpoint["own"] = {"seen": self.seen, "epochs": self.epochs}

    def on_load_checkpoint(self, checkpoint):
        self.seen, self.epochs = checkpoint["own"]["seen"], checkpoint["own"]["epochs"]

    def configure_optimizers(self):
        if not self.automatic_optimization:
            first, second = self.body[0].parameters(), self.body[3].parameters()
            return [torch.optim.SGD(first, 0.1, 0.9), torch.optim.AdamW(second, 0.01)]
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        step = {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, 40), "interval": "step"}
        plateau = {"scheduler": torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0), "monitor": "val"}
        return [optimizer], [plateau if self.trainer.max_epochs == 4 else step]


class Killer(pl.Callback):
    """Lets saves settle; ends the process at (hook, number of batches begun)."""

    def __init__(self, cb, die, stop_agent):
        self.cb, self.die, self.stop_agent = cb, die, stop_agent

    def here(self, hook, trainer):
        if trainer.sanity_checking:
            return
        batch = trainer.fit_loop.epoch_loop.batch_progress.total.ready
        if self.stop_agent and hook == "batch_end" and batch == 3:
            os.kill(self.stop_agent, signal.SIGKILL)
        if self.cb is not None and not self.stop_agent and hook == "batch_end":
            self.settle()
        if self.die == [hook, batch]:
            os.kill(os.getpid(), signal.SIGKILL)

    def settle(self):
        for save in tuple(self.cb.checkpointer._pending):
            with contextlib.suppress(ckptd.SaveError):
                save.captured(20)
        if "LAYOUT_PREPARING" in self.cb.checkpointer.dropped:
            time.sleep(0.1)

    def on_train_batch_start(self, trainer, *_):
        self.here("batch_start", trainer)

    def on_train_batch_end(self, trainer, *_):
        self.here("batch_end", trainer)

    def on_validation_end(self, trainer, *_):
        self.here("validation_end", trainer)

    def on_train_epoch_end(self, trainer, *_):
        self.here("epoch_end", trainer)


def loader(kind):
    if kind == "workers":
        return DataLoader(Items(noisy=False), 4, shuffle=True, num_workers=2)
    if kind == "stream":
        return DataLoader(Stream(), 4)
    if kind == "sampler":
        return DataLoader(Items(), 4, sampler=torch.utils.data.DistributedSampler(Items(), 1, 0))
    if kind == "torchdata":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(Items(), 4, shuffle=True)
    return DataLoader(Items(), 4, shuffle=True)


def short(tensors):
    return {name: hashlib.sha256(value.numpy().tobytes()).hexdigest()[:12] for name, value in tensors.items()}


def digest(module, trainer):
    held = {name: value for name, value in module.state_dict().items()}
    for number, optimizer in enumerate(trainer.optimizers):
        for index, state in enumerate(optimizer.state.values()):
            held.update({f"{number}.{index}.{key}": value for key, value in state.items()})
    held = {name: value for name, value in held.items() if value is not None}
    return {**short(held), "rng": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest()}


def quiet():
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def averaging(kind):
    """Callbacks that keep averaged weights beside the module's."""
    if kind == "ema":
        return [pl.callbacks.EMAWeightAveraging(decay=0.8)]
    return [pl.callbacks.WeightAveraging()] if kind == "average" else []


def make(out, callbacks, more):
    options = {
        "max_epochs": 3, "accelerator": "cpu", "devices": 1, "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "default_root_dir": out, "enable_checkpointing": False, **more,
    }  # fmt: skip
    return pl.Trainer(callbacks=callbacks, **options)


class ByIterator(Net):
    def training_step(self, dataloader_iter):
        return super().training_step(next(dataloader_iter)[0], 0)


class Holding(Net):
    def on_save_checkpoint(self, checkpoint):
        checkpoint["held"] = object()


def misuse(out, how, job):
    """Writes the sentence with which a wrong use is refused."""
    module = {"iterator": ByIterator, "held": Holding}.get(how, Net)(out)
    cb = ckptd.lightning.Callback(job=job, every=1, timeout=30, connect_timeout=1)
    stopper = pl.callbacks.EarlyStopping("val", patience=99)
    more = [Killer(cb, None, 0)] if how == "ckpt_path" else []
    callbacks = [cb] if how == "other callbacks" else [stopper, cb, *more]
    trainer = make(out, callbacks, {"max_epochs": 2, "num_sanity_val_steps": 0})
    data = {"a": loader("plain"), "b": loader("plain")} if how == "several" else loader("plain")
    path = None
    if how == "ckpt_path":
        path = f"{out}/weights.ckpt"
        head = {"pytorch-lightning_version": "2.6.0", "epoch": 0, "global_step": 0, "loops": None}
        own = {"own": {"seen": 0, "epochs": []}, "optimizer_states": [], "lr_schedulers": []}
        torch.save({"state_dict": module.state_dict(), **head, **own}, path)
    try:
        trainer.fit(module, data, DataLoader(Items(6, 12, noisy=False), 4), ckpt_path=path)
    except Exception as error:
        with open(f"{out}/refused", "w") as file:
            file.write(f"{type(error).__name__}: {error}")


def main(out, job="pl", save=True, die=None, every=1, stop_agent=0, kind="plain", more=None, how=None):
    quiet()
    if how:
        return misuse(out, how, job)
    torch.manual_seed(3)
    module = Net(out, manual=kind == "manual")
    cb = ckptd.lightning.Callback(job=job, every=every, timeout=30, connect_timeout=3) if save else None
    stopper = pl.callbacks.EarlyStopping("val", patience=99)
    averages = averaging(kind)
    callbacks = [stopper, *averages, *([cb, Killer(cb, die, stop_agent)] if save else [])]
    trainer = make(out, callbacks, more or {})
    trainer.fit(module, loader(kind), DataLoader(Items(6, 12, noisy=False), 4))
    report = {
        "tensors": digest(module, trainer), "epochs": module.epochs, "seen": module.seen,
        "averages": [short(each._average_model.state_dict()) for each in averages],
        "sched": [repr(config.scheduler.state_dict()) for config in trainer.lr_scheduler_configs],
        "stopper": [stopper.wait_count, stopper.best_score.item()], "global_step": trainer.global_step,
        "loops": trainer.fit_loop.state_dict(),
    }  # fmt: skip
    report["loops"]["state_dict"] = {}
    ck = cb.checkpointer if save else None
    told = {"restored": [ck.restored.step, ck.restored.source], "dropped": dict(ck.dropped)} if save else {}
    with open(f"{out}/final.json", "w") as file:
        json.dump({"report": report, **told}, file)
