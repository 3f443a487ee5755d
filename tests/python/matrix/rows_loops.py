"""Rows about what a training step does, and about what happens between two saves."""

from __future__ import annotations

import copy
import ctypes
import threading
from collections.abc import Callable
from typing import Any

import ckptd
import torch
from torch import nn

from .rows import Loop, Net, loss_of, row, updating


def pair() -> tuple[nn.Module, torch.optim.Optimizer]:
    """What rows train that are not about models or optimizers."""
    model = Net()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@row("gradient clipping", "gate")
def clipping() -> Loop:
    model, optimizer = pair()

    def train(batch):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        return loss

    return Loop({"model": model, "optim": optimizer}, train)


@row("gradient accumulation, step() after each update", "gate")
def accumulation() -> Loop:
    model, optimizer = pair()

    def train(batch):
        optimizer.zero_grad()
        for half in range(2):
            loss = loss_of(model, [item[half::2] for item in batch])
            loss.backward()
        optimizer.step()
        return loss

    return Loop({"model": model, "optim": optimizer}, train)


@row(
    "gradient accumulation, step() after each micro-batch", "updates only",
    note="saved after updates only", steps=12, first_kill=10,
)  # fmt: skip
def micro_batches() -> Loop:
    model, optimizer = pair()
    done = {"micro": 0}

    def train(batch):
        loss = loss_of(model, batch)
        (loss / 7).backward()
        done["micro"] += 1
        if done["micro"] in (2, 4, 6, 8, 15):  # the first saves may be dropped: memory for them is prepared
            optimizer.step()
            optimizer.zero_grad()
        return loss

    return Loop({"model": model, "optim": optimizer, "done": done}, train)


def scaled(zero_after: bool) -> Loop:
    """A scale so large that every second or third step overflows and is skipped."""
    model, optimizer = pair()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_factor=1.7, growth_interval=1)

    def train(batch):
        if not zero_after:
            optimizer.zero_grad()
        loss = loss_of(model, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        if zero_after:
            optimizer.zero_grad()
        return loss * scaler.get_scale()

    return Loop({"model": model, "optim": optimizer, "scaler": scaler}, train)


@row("GradScaler with skipped steps", "plain values", note="saved after updates only")
def scaler() -> Loop:
    return scaled(zero_after=False)


@row("GradScaler with skipped steps, zero_grad last", "plain values", note="saved after updates only")
def scaler_zero_after() -> Loop:
    return scaled(zero_after=True)


@row("autocast to bf16", "gate")
def autocast() -> Loop:
    model, optimizer = pair()

    def train(batch):
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return Loop({"model": model, "optim": optimizer}, train)


@row("evaluation between steps", "gate", "generators")
def evaluation() -> Loop:
    model = Net(nn.Dropout(0.2), nn.BatchNorm1d(16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train = updating(model, optimizer)
    best = {"loss": float("inf")}

    @torch.no_grad()
    def evaluate(n: int) -> None:
        model.eval()
        best["loss"] = min(best["loss"], model(torch.randn(4, 8)).sum().item())
        model.train()

    return Loop({"model": model, "optim": optimizer, "best": best}, train, before=evaluate)


@row("evaluation with EMA weights copied in and out, after ck.gate()", "gate() by hand")
def evaluation_with_ema() -> Loop:
    model, optimizer = pair()
    loop = Loop({"model": model, "optim": optimizer}, updating(model, optimizer))

    @torch.no_grad()
    def evaluate(n: int) -> None:
        if loop.checkpointer is not None:
            loop.checkpointer.gate()
        kept = {name: value.clone() for name, value in model.state_dict().items()}
        for p in model.parameters():
            p.mul_(0.5)
        model(torch.zeros(1, 8))
        model.load_state_dict({name: value * 0.99 for name, value in kept.items()})

    loop.before = evaluate
    return loop


@row("leaf tensors in a list, no module", "gate", "optimizer state")
def leaves() -> Loop:
    weights = [(torch.randn(8, 16) * 0.3).requires_grad_(), (torch.randn(16, 4) * 0.3).requires_grad_()]
    optimizer = torch.optim.Adam(weights, lr=0.01)

    def train(batch):
        loss = nn.functional.cross_entropy(torch.tanh(batch[0] @ weights[0]) @ weights[1], batch[1])
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss

    return Loop({"weights": weights, "optim": optimizer}, train)


@row(
    "an optimizer of tensors that are not in the state",
    refused="optim: it updates a parameter of shape (8, 16) that no module in `state` has",
)
def not_in_state() -> Loop:
    loop = leaves()
    del loop.state["weights"]
    return loop


@row("training by hand, with ck.gate()", "gate() by hand")
def by_hand() -> Loop:
    model = Net()
    loop = Loop({"model": model}, lambda batch: None)

    def train(batch):
        loss = loss_of(model, batch)
        model.zero_grad()
        loss.backward()
        if loop.checkpointer is not None:
            loop.checkpointer.gate()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(0.1 * p.grad)
        return loss

    ckptd.lazy(model)
    loop.train = train
    return loop


def moving(name: str, *rules: str, **more: Any) -> Callable[[Any], Any]:
    """A row in which the decorated function changes things at the beginning of each step from the fourth on."""

    def add(change: Callable[[nn.Module, torch.optim.Optimizer], None]) -> Any:
        def build() -> Loop:
            model, optimizer = pair()
            loop = Loop({"model": model, "optim": optimizer}, updating(model, optimizer))

            def before(n: int) -> None:
                if n >= 4:
                    change(model, optimizer, loop.checkpointer)

            loop.before = before
            return loop

        build.__module__ = __name__
        row(name, *rules, **more)(build)
        return change

    return add


@moving("p.data = another tensor", "moves")
def data_moved(model, optimizer, ck) -> None:
    for p in model.parameters():
        p.data = p.data * 1.1


@moving("model.double().float() between saves", "moves")
def to_and_back(model, optimizer, ck) -> None:
    model.double().float()


@moving("optimizer.load_state_dict between saves", "moves")
def optimizer_reloaded(model, optimizer, ck) -> None:
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))


@moving("a parameter replaced by another object", "moves")
def replaced(model, optimizer, ck) -> None:
    new = nn.Parameter(model.last.bias.detach() * 1.1)
    optimizer.state[new] = optimizer.state.pop(model.last.bias, {})
    optimizer.param_groups[0]["params"][-1] = new
    model.last.bias = new


@moving("other strides between saves", "moves", first_kill=5)
def restrided(model, optimizer, ck) -> None:
    model.first.weight.data = model.first.weight.data.t().contiguous().t() * 1.1


@moving("model.load_state_dict after ck.gate()", "gate() by hand")
def model_reloaded(model, optimizer, ck) -> None:
    if ck is not None:
        ck.gate()
    model.load_state_dict({name: value * 1.1 for name, value in model.state_dict().items()})


@moving("LoRA merge after ck.gate()", "gate() by hand")
def lora(model, optimizer, ck) -> None:
    if ck is not None:
        ck.gate()
    model.first.weight.data += torch.outer(torch.arange(16.0), torch.arange(8.0)) / 1000


def broken_promise(name: str) -> Callable[[Any], Any]:
    """A row in which the decorated function writes to a weight while it is being captured; the self-check sees it."""

    def add(write: Callable[[nn.Module], None]) -> Any:
        def build() -> Loop:
            model, optimizer = pair()
            loop = Loop({"model": model, "optim": optimizer}, updating(model, optimizer))
            loop.options["selfcheck"] = "always"
            loop.before = lambda n: write(model)
            return loop

        build.__module__ = __name__
        warned = "model.first.weight"
        note = 'the torn save is dropped, told, and the tensor is captured eagerly from then on; selfcheck="always"'
        row(f"no ck.gate(): {name}", "self-check", dropped=("TORN",), note=note, warned=warned)(build)
        return write

    return add


@broken_promise("LoRA merge (.data +=)")
def merged(model) -> None:
    model.first.weight.data += torch.outer(torch.arange(16.0), torch.arange(8.0)) / 1000


@broken_promise("an update in place under no_grad")
def in_place(model) -> None:
    with torch.no_grad():
        model.first.weight.mul_(0.99)


@broken_promise("a write through a NumPy view")
def numpy_view(model) -> None:
    model.first.weight.detach().numpy()[3] += 0.01


@broken_promise("C code that has the address")
def c_code(model) -> None:
    weight = model.first.weight
    ctypes.memset(weight.data_ptr() + weight.element_size(), 0, weight.element_size())


@broken_promise("another thread")
def thread(model) -> None:
    writer = threading.Thread(target=lambda: model.first.weight.data.mul_(0.99))
    writer.start()
    writer.join()


@broken_promise("load_state_dict on the model")
def reloaded(model) -> None:
    model.load_state_dict({name: value * 0.99 for name, value in model.state_dict().items()})


@row(
    "memory of the parameters given back between steps (resize_(0))",
    refused="model.first.weight: its memory was given back (its storage has 0 bytes, it needs 512;",
)
def given_back() -> Loop:
    model, optimizer = pair()
    train = updating(model, optimizer)
    away: list[torch.Tensor] = []

    def offloading(batch):
        for p, kept in zip(model.parameters(), away):
            p.data.untyped_storage().resize_(kept.nbytes)
            p.data.copy_(kept)
        loss = train(batch)
        away[:] = [p.detach().clone() for p in model.parameters()]
        for p in model.parameters():
            p.data.untyped_storage().resize_(0)
        return loss

    return Loop({"model": model, "optim": optimizer}, offloading)


def thaw_group(refusing: bool) -> Loop:
    """A group more from the fifth step on; what resumes adds it before `restore()`, or does not."""
    model = Net(nn.Linear(16, 16))
    most = [p for name, p in model.named_parameters() if "extra" not in name]
    optimizer = torch.optim.AdamW(most, lr=0.01)

    def add() -> None:
        optimizer.add_param_group({"params": list(model.extra.parameters()), "lr": 0.05})

    loop = Loop({"model": model, "optim": optimizer}, updating(model, optimizer))
    loop.before = lambda n: add() if n == 5 and len(optimizer.param_groups) == 1 else None
    loop.resumed = None if refusing else add
    return loop


@row("add_param_group, done again before restore()", "gate", "optimizer state", first_kill=7)
def group_added() -> Loop:
    return thaw_group(refusing=False)


@row(
    "add_param_group, not done again before restore()",
    refused="optim: 1 parameter groups here, 2 in the checkpoint", first_kill=7,
)  # fmt: skip
def group_missing() -> Loop:
    return thaw_group(refusing=True)
