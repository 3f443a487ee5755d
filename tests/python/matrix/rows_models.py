"""Rows about what a model is made of."""

from __future__ import annotations

import random
import warnings

import numpy as np
import torch
import torch.ao.quantization
import torch.nn.utils.prune
from torch import nn
from torch.utils.checkpoint import checkpoint

from .rows import Loop, Net, loss_of, row, updating


def adam(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of rows that are not about optimizers."""
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def plain(model: nn.Module) -> Loop:
    """Trains `model` with AdamW."""
    optimizer = adam(model)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("dropout", "generators", "gate")
def dropout() -> Loop:
    return plain(Net(nn.Dropout(0.3)))


@row("BatchNorm", "eager", "everything")
def batch_norm() -> Loop:
    return plain(Net(nn.BatchNorm1d(16)))


@row("spectral norm (vectors written in forward)", "eager")
def spectral_norm() -> Loop:
    return plain(Net(nn.utils.parametrizations.spectral_norm(nn.Linear(16, 16))))


@row("weight norm (parametrized)", "gate")
def weight_norm() -> Loop:
    return plain(Net(nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))))


class ScaledLinear(nn.Linear):
    """As FP8 recipes do: a scale from the history of what was seen, written in forward."""

    def __init__(self) -> None:
        super().__init__(16, 16)
        self.register_buffer("history", torch.zeros(4))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.history.copy_(self.history.roll(1))
            self.history[0] = x.abs().amax()
            self.scale.copy_(self.history.amax() + 1)
        return super().forward(x) / self.scale


@row("FP8-style scales, written in forward", "eager")
def scales() -> Loop:
    return plain(Net(ScaledLinear()))


class Counting(nn.Module):
    """State that is neither parameter nor buffer, shown by get_extra_state."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * (1 + 0.1 * self.seen)

    def get_extra_state(self) -> dict[str, int]:
        return {"seen": self.seen}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.seen = state["seen"]


@row("get_extra_state", "plain values")
def extra_state() -> Loop:
    return plain(Net(Counting()))


class Unusual(nn.Linear):
    """State that is shown by a method of torch's inner workings only."""

    def _save_to_state_dict(self, destination, prefix, keep_vars) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "seen"] = torch.zeros(1)


@row(
    "a module that overrides _save_to_state_dict",
    refused="model.extra.0: the state_dict() of a Unusual also holds 'seen', which is no parameter and no buffer; "
    "use register_buffer, or get_extra_state and set_extra_state",
)
def unusual() -> Loop:
    return plain(Net(Unusual(16, 16)))


class Showing(nn.Module):
    """As torchmetrics: state that its own state_dict() adds to the others."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return x * (1 + 0.1 * self.seen)

    def state_dict(self, *args, prefix="", **kwargs):
        found = super().state_dict(*args, prefix=prefix, **kwargs)
        found[prefix + "seen"] = self.seen
        return found

    def load_state_dict(self, state) -> None:
        self.seen = state["seen"]


@row(
    "a module that overrides state_dict",
    refused="model.extra.0: the state_dict() of a Showing also holds 'seen', which is no parameter and no buffer; "
    "give this module to `state` as well, under a key of its own",
)
def showing() -> Loop:
    return plain(Net(Showing()))


@row("the same module, given under a key of its own too", "plain values")
def shown() -> Loop:
    loop = plain(Net(Showing()))
    loop.state["shown"] = loop.state["model"].extra[0]
    return loop


def averaged(model: nn.Module, average, before: bool) -> Loop:
    """`average()` before or after the optimizer's step."""
    optimizer = adam(model)

    def train(batch):
        loss = loss_of(model, batch)
        optimizer.zero_grad()
        loss.backward()
        if before:
            average()
        optimizer.step()
        if not before:
            average()
        return loss

    return Loop({"model": model, "optim": optimizer}, train)


def ema_dict(before: bool) -> Loop:
    """EMA as a dict of plain tensors."""
    model = Net()
    ema = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def average() -> None:
        for name, parameter in model.named_parameters():
            ema[name].lerp_(parameter, 0.1)

    loop = averaged(model, average, before)
    loop.state["ema"] = ema
    return loop


@row("EMA updated after the step, plain tensors", "live containers")
def ema_after() -> Loop:
    return ema_dict(before=False)


@row("EMA updated before the step, plain tensors", "eager")
def ema_before() -> Loop:
    return ema_dict(before=True)


def ema_module(before: bool) -> Loop:
    """EMA as a second module, whose Parameters require gradients."""
    model, ema = Net(), Net()
    ema.load_state_dict(model.state_dict())

    @torch.no_grad()
    def average() -> None:
        for average, parameter in zip(ema.parameters(), model.parameters()):
            average.lerp_(parameter, 0.1)

    loop = averaged(model, average, before)
    loop.state["ema"] = ema
    return loop


@row("EMA updated after the step, as Parameters", "whole modules")
def ema_parameters_after() -> Loop:
    return ema_module(before=False)


@row("EMA updated before the step, as Parameters", "only optimizers' parameters are lazy")
def ema_parameters_before() -> Loop:
    return ema_module(before=True)


@row("EMA that makes new tensors each step", "live containers")
def ema_new_tensors() -> Loop:
    model = Net()
    ema = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def average() -> None:
        for name, parameter in model.named_parameters():
            ema[name] = 0.9 * ema[name] + 0.1 * parameter.detach()

    loop = averaged(model, average, before=False)
    loop.state["ema"] = ema
    return loop


@row("torch.optim.swa_utils.AveragedModel", "everything")
def swa() -> Loop:
    model = Net()
    average = torch.optim.swa_utils.AveragedModel(model)
    loop = averaged(model, lambda: average.update_parameters(model), before=False)
    loop.state["swa"] = average
    return loop


@row("tied weights", "into the same tensors")
def tied_weights() -> Loop:
    model = Net(nn.Linear(16, 16), nn.Linear(16, 16))
    model.extra[1].weight = model.extra[0].weight
    return plain(model)


@row("frozen layers", "whole modules", "gate")
def frozen() -> Loop:
    model = Net(nn.Linear(16, 16))
    model.extra.requires_grad_(False)
    loop = plain(model)
    loop.resumed = lambda: nn.init.zeros_(model.extra[0].weight)  # a script that loads them only once
    return loop


@row("layers thawed in the middle of the run", "gate", "live containers")
def thawed() -> Loop:
    model = Net(nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    train = updating(model, optimizer)
    done = {"steps": 0}

    def train_and_thaw(batch):
        model.extra.requires_grad_(done["steps"] >= 5)
        done["steps"] += 1
        return train(batch)

    return Loop({"model": model, "optim": optimizer, "done": done}, train_and_thaw)


def fake_quantized(warm: bool) -> Loop:
    """Quantization-aware training, per channel: its observers get their shape in the first forward pass."""
    model = Net(nn.Linear(16, 16))
    model.extra[0].qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.ao.quantization.prepare_qat(model, inplace=True)
    loop = plain(model)
    loop.resumed = (lambda: model(torch.zeros(1, 8))) if warm else None
    return loop


@row("quantization-aware training, one forward pass before restore()", "eager", "everything")
def quantized() -> Loop:
    return fake_quantized(warm=True)


@row(
    "quantization-aware training, no forward pass before restore()",
    refused="model.extra.0.weight_fake_quant.scale: F32 [1] here, F32 [16] in the checkpoint",
)
def quantized_cold() -> Loop:
    return fake_quantized(warm=False)


@row(
    "a Lazy module before its first forward pass",
    refused="model.extra.0.weight: it has no shape yet (a Lazy module); run one forward pass before Checkpointer(...)",
)
def lazy_module() -> Loop:
    model = Net(nn.LazyLinear(16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("a Lazy module after its first forward pass", "gate")
def lazy_module_warm() -> Loop:
    model = Net(nn.LazyLinear(16))
    model(torch.zeros(1, 8))
    return plain(model)


@row("pruned weights", "gate")
def pruned() -> Loop:
    model = Net(nn.Linear(16, 16))
    nn.utils.prune.random_unstructured(model.extra[0], "weight", 0.5)
    return plain(model)


@row("stochastic depth (Python's generator)", "generators")
def stochastic_depth() -> Loop:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.inner(x) * (random.random() < 0.7) * np.random.rand()

    return plain(Net(Sometimes()))


class Recomputed(nn.Module):
    """Activation checkpointing around dropout: the backward pass draws the same mask again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.3), nn.Tanh())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


@row("activation checkpointing", "generators")
def activation_checkpointing() -> Loop:
    return plain(Net(Recomputed()))


@row("recurrent layers", "gate")
def recurrent() -> Loop:
    class Last(nn.LSTM):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.unsqueeze(1))[0].squeeze(1)

    return plain(Net(Last(16, 16, num_layers=2, batch_first=True, dropout=0.2)))


@row("attention with a mask buffer that is not saved", "gate")
def attention() -> Loop:
    class Attention(nn.TransformerEncoderLayer):
        def __init__(self) -> None:
            super().__init__(16, 2, 32, dropout=0.1, batch_first=True)
            self.register_buffer("mask", torch.zeros(1, 1, dtype=torch.bool), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x.unsqueeze(1), src_mask=self.mask).squeeze(1)

    return plain(Net(Attention()))
