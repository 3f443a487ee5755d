"""Rows about torch's optimizers and schedulers."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import nn

from .rows import Loop, Net, loss_of, row, updating

O = torch.optim
S = O.lr_scheduler


def optimizer_row(name: str, make, *rules: str, net=Net, **more: Any) -> None:
    """A row that trains a net with the optimizer that `make` makes of its parameters."""

    def build() -> Loop:
        model = net()
        optimizer = make(list(model.parameters()))

        def train(batch):
            def closure():
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                return loss

            return optimizer.step(closure)

        return Loop({"model": model, "optim": optimizer}, train)

    build.__module__ = __name__
    row(name, *rules, **more)(build)


class Flat(Net):
    """Only matrices, as Muon wants them."""

    def __init__(self) -> None:
        super().__init__()
        for module in (self.first, self.last):
            module.register_parameter("bias", None)


class Words(nn.Module):
    """A sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(16, 4, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.words((x[:, 0].abs() * 5).long() % 16)


STATEFUL = ("gate", "optimizer state")
optimizer_row("SGD", lambda p: O.SGD(p, lr=0.1), "gate")
optimizer_row("SGD with momentum", lambda p: O.SGD(p, lr=0.1, momentum=0.9), *STATEFUL)
optimizer_row("SGD with momentum, fused", lambda p: O.SGD(p, lr=0.1, momentum=0.9, fused=True), *STATEFUL)
optimizer_row("Adam, one tensor at a time", lambda p: O.Adam(p, lr=0.01, foreach=False), *STATEFUL)
optimizer_row("Adam, foreach", lambda p: O.Adam(p, lr=0.01, foreach=True), *STATEFUL)
optimizer_row("Adam, fused", lambda p: O.Adam(p, lr=0.01, fused=True), *STATEFUL)
optimizer_row("AdamW, one tensor at a time", lambda p: O.AdamW(p, lr=0.01, foreach=False), *STATEFUL)
optimizer_row("AdamW, foreach, amsgrad", lambda p: O.AdamW(p, lr=0.01, foreach=True, amsgrad=True), *STATEFUL)
optimizer_row("AdamW, fused", lambda p: O.AdamW(p, lr=0.01, fused=True), *STATEFUL)
optimizer_row("AdamW, tensor learning rate", lambda p: O.AdamW(p, lr=torch.tensor(0.01), foreach=False), *STATEFUL)
optimizer_row(
    "AdamW, tensor learning rate, fused", lambda p: O.AdamW(p, lr=torch.tensor(0.01), fused=True), *STATEFUL
)
BETAS = (torch.tensor(0.9), torch.tensor(0.99))
optimizer_row("AdamW, tensor betas", lambda p: O.AdamW(p, lr=0.01, betas=BETAS, foreach=False), *STATEFUL)


def capturable(p: list[nn.Parameter]) -> O.Optimizer:
    """Its `step` is a tensor where the parameter is, which no host code reads; torch allows that on GPUs only."""
    sys.modules[O.Adam.__module__]._get_capturable_supported_devices = lambda *_, **__: ["cpu"]
    return O.AdamW(p, lr=0.01, capturable=True, foreach=False)


optimizer_row("AdamW, capturable", capturable, *STATEFUL, note="on the CPU, with torch's check of the device lifted")
optimizer_row("Adafactor (factored state)", lambda p: O.Adafactor(p, lr=0.05), *STATEFUL)
optimizer_row("Adagrad (state from the start)", lambda p: O.Adagrad(p, lr=0.1), "gate")
optimizer_row("Adadelta", lambda p: O.Adadelta(p), *STATEFUL)
optimizer_row("Adamax", lambda p: O.Adamax(p, lr=0.05), *STATEFUL)
optimizer_row("ASGD", lambda p: O.ASGD(p, lr=0.1), *STATEFUL)
optimizer_row("NAdam", lambda p: O.NAdam(p, lr=0.05), *STATEFUL)
optimizer_row("RAdam", lambda p: O.RAdam(p, lr=0.05), *STATEFUL)
optimizer_row("RMSprop, centered", lambda p: O.RMSprop(p, lr=0.01, centered=True, momentum=0.5), *STATEFUL)
optimizer_row("Rprop", lambda p: O.Rprop(p, lr=0.01), *STATEFUL)
optimizer_row("SparseAdam", lambda p: O.SparseAdam(p, lr=0.05), *STATEFUL, net=Words)
optimizer_row("Muon", lambda p: O.Muon(p, lr=0.05), *STATEFUL, net=Flat)
optimizer_row("LBFGS (several closures per step)", lambda p: O.LBFGS(p, lr=0.1, max_iter=4, history_size=3), *STATEFUL)


def groups(p: list[nn.Parameter]) -> O.Optimizer:
    return O.AdamW([{"params": p[:1], "lr": 0.05}, {"params": p[1:], "weight_decay": 0.3, "betas": (0.5, 0.9)}])


optimizer_row("parameter groups", groups, *STATEFUL)


class HighPrecision(O.Optimizer):
    """Adam's state in fp32 for bf16 parameters, as optimizers of large models have it."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                first = state.setdefault("exp_avg", torch.zeros(p.shape))
                second = state.setdefault("exp_avg_sq", torch.zeros(p.shape))
                gradient = p.grad.float()
                first.mul_(0.9).add_(gradient, alpha=0.1)
                second.mul_(0.99).add_(gradient.square(), alpha=0.01)
                p.copy_(p.float() - group["lr"] * first / (second.sqrt() + 1e-3))
        return loss


class Half(Net):
    """bf16 inside."""

    def __init__(self) -> None:
        super().__init__()
        self.bfloat16()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.bfloat16()).float()


optimizer_row("bf16 parameters with fp32 state", lambda p: HighPrecision(p, lr=0.01), "never cast", *STATEFUL, net=Half)
optimizer_row("bf16 parameters with bf16 state", lambda p: O.AdamW(p, lr=0.01), *STATEFUL, net=Half)


@row("bf16 model, fp32 master weights", "gate", "into the same tensors")
def master_weights() -> Loop:
    model = Net().bfloat16()
    master = nn.ParameterList(p.detach().float() for p in model.parameters())
    optimizer = O.AdamW(master, lr=0.01)

    def train(batch):
        x, y = batch
        loss = nn.functional.cross_entropy(model(x.bfloat16()).float(), y)
        model.zero_grad()
        loss.backward()
        for high, low in zip(master, model.parameters()):
            high.grad = low.grad.float()
        optimizer.step()
        with torch.no_grad():
            for high, low in zip(master, model.parameters()):
                low.copy_(high)
        return loss

    return Loop({"model": model, "master": master, "optim": optimizer}, train)


def scheduled(name: str, make, *rules: str, tensor_lr: bool = False, first: bool = False, **more: Any) -> None:
    """A row whose scheduler steps after the optimizer, or before it."""

    def build() -> Loop:
        model = Net()
        if tensor_lr:
            optimizer = O.AdamW(model.parameters(), lr=torch.tensor(0.05), foreach=False)
        else:
            optimizer = O.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = make(optimizer)
        train = updating(model, optimizer) if first else updating(model, optimizer, scheduler)

        def scheduler_first(batch):
            scheduler.step()
            return train(batch)

        state = {"model": model, "optim": optimizer, "sched": scheduler}
        return Loop(state, scheduler_first if first else train)

    build.__module__ = __name__
    row(name, *rules, **more)(build)


scheduled("MultiStepLR", lambda o: S.MultiStepLR(o, [2, 5, 5, 7], 0.5), "plain values", "options")
scheduled("OneCycleLR (moves momentum too)", lambda o: S.OneCycleLR(o, 0.2, total_steps=12), "plain values", "options")
scheduled("LambdaLR", lambda o: S.LambdaLR(o, lambda step: 0.9**step), "plain values", "options")
scheduled("CosineAnnealingWarmRestarts", lambda o: S.CosineAnnealingWarmRestarts(o, 3), "plain values", "options")
scheduled("CyclicLR", lambda o: S.CyclicLR(o, 0.01, 0.1, 3), "plain values")
scheduled(
    "SequentialLR (warm-up, then decay)",
    lambda o: S.SequentialLR(o, [S.LinearLR(o, 0.1, total_iters=4), S.ExponentialLR(o, 0.8)], [4]),
    *("plain values", "options"),
)
scheduled(
    "ChainedScheduler", lambda o: S.ChainedScheduler([S.ConstantLR(o, 0.5, 6), S.ExponentialLR(o, 0.8)]),
    *("plain values", "options"),
)  # fmt: skip
scheduled(
    "tensor learning rate, scheduler after the optimizer", lambda o: S.ExponentialLR(o, 0.8), "options",
    tensor_lr=True,
)  # fmt: skip
scheduled(
    "tensor learning rate, scheduler before the optimizer", lambda o: S.ExponentialLR(o, 0.8), "eager options",
    tensor_lr=True, first=True,
)  # fmt: skip


@row("ReduceLROnPlateau", "plain values", "options")
def plateau() -> Loop:
    model = Net()
    optimizer = O.SGD(model.parameters(), lr=0.5)
    scheduler = S.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    train = updating(model, optimizer)

    def train_and_look(batch):
        loss = train(batch)
        scheduler.step(loss.item())
        return loss

    return Loop({"model": model, "optim": optimizer, "sched": scheduler}, train_and_look)
