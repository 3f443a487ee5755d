"""Rows about optimizers and schedulers."""

from __future__ import annotations

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
                first.lerp_(gradient, 0.1)
                second.lerp_(gradient.square(), 0.01)
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


class Lookahead:
    """Wraps an optimizer, does not derive from Optimizer, and moves the parameters itself as well."""

    def __init__(self, inner: O.Optimizer) -> None:
        self.inner, self.done = inner, 0
        self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self) -> None:
        for group in self.inner.param_groups:  # on its own, before anything fires a hook
            for p in group["params"]:
                p.mul_(0.999)
        self.inner.step()
        self.done += 1
        if self.done % 3 == 0:
            fast = [p for group in self.inner.param_groups for p in group["params"]]
            for slow, p in zip(self.slow, fast):
                slow.lerp_(p, 0.5)
                p.copy_(slow)

    def zero_grad(self) -> None:
        self.inner.zero_grad()

    def state_dict(self) -> dict[str, Any]:
        return {"inner": self.inner.state_dict(), "slow": self.slow, "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state["inner"])
        self.done = state["done"]
        for slow, value in zip(self.slow, state["slow"]):
            slow.copy_(value)


@row("a wrapper that is no Optimizer", "only optimizers' parameters are lazy")
def wrapper() -> Loop:
    model = Net()
    optimizer = Lookahead(O.AdamW(model.parameters(), lr=0.01))
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


class Hidden(O.Optimizer):
    """Derives from Optimizer, calls no constructor of it, and keeps the state in an inner one."""

    def __init__(self, inner: O.Optimizer) -> None:
        self.inner = inner
        self.param_groups = inner.param_groups
        self.state = {}
        self.defaults = inner.defaults

    def step(self, closure: Any = None) -> None:
        self.inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


@row(
    "a wrapper whose state is in an optimizer inside",
    refused="optim: a Hidden holds another optimizer in .inner, whose state would be lost; "
    "put that one (AdamW) into `state` as well",
)
def hidden() -> Loop:
    model = Net()
    optimizer = Hidden(O.AdamW(model.parameters(), lr=0.01))
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("the same wrapper, the optimizer inside given too", "gate", "optimizer state")
def hidden_and_inner() -> Loop:
    model = Net()
    optimizer = Hidden(O.AdamW(model.parameters(), lr=0.01))
    return Loop({"model": model, "optim": optimizer, "inner": optimizer.inner}, updating(model, optimizer))


class Delegating(O.Optimizer):
    """Shows the state of the one inside as its own (accelerate, DeepSpeed, fairscale)."""

    def __init__(self, inner: O.Optimizer) -> None:
        self.inner = inner

    param_groups = property(lambda self: self.inner.param_groups)
    state = property(lambda self: self.inner.state)
    defaults = property(lambda self: self.inner.defaults)

    def step(self, closure: Any = None) -> None:
        self.inner.step()

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


@row("a wrapper that shows the inner state as its own", "gate", "optimizer state")
def delegating() -> Loop:
    model = Net()
    optimizer = Delegating(O.AdamW(model.parameters(), lr=0.01))
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


class Unhooked(O.Optimizer):
    """torch takes its `step` for hooked already, so no hook ever fires."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                momentum = self.state[p].setdefault("momentum", torch.zeros_like(p))
                momentum.mul_(0.9).add_(p.grad)
                p.sub_(momentum, alpha=group["lr"])

    step.hooked = True


@row("an optimizer whose step fires no hook", "lazy once a hook fired")
def unhooked() -> Loop:
    model = Net()
    optimizer = Unhooked(model.parameters(), lr=0.1)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("an optimizer whose step fires no hook, before one whose does", "lazy once a hook fired")
def unhooked_beside() -> Loop:
    model = Net()
    silent = Unhooked(model.first.parameters(), lr=0.1)
    hooked = O.SGD(model.last.parameters(), lr=0.1, momentum=0.9)

    def train(batch):
        loss = loss_of(model, batch)
        model.zero_grad()
        loss.backward()
        silent.step()
        hooked.step()
        return loss

    return Loop({"model": model, "silent": silent, "hooked": hooked}, train)


class Ascending(O.Optimizer):
    """As SAM: a first half step uphill that fires no hook, a second one that lets another optimizer step."""

    def __init__(self, params: Any, inner: type[O.Optimizer], **options: Any) -> None:
        super().__init__(params, {})
        self.inner = inner(self.param_groups, **options)

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["old"] = p.clone()
                p.add_(p.grad, alpha=0.05)

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                p.data = self.state[p].pop("old")
        self.inner.step()


class Cooling(O.AdamW):
    """Counts on its own, and shows that in its state_dict only."""

    done = 0

    def step(self, closure: Any = None) -> Any:
        self.done += 1
        for group in self.param_groups:
            group["lr"] = 0.05 / self.done
        return super().step(closure)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]
        super().load_state_dict({key: value for key, value in state.items() if key != "done"})


optimizer_row("an optimizer with a state_dict() of its own", lambda p: Cooling(p), "optimizers' own state")


@row("SAM: a half step that fires no hook", "lazy once a hook fired")
def ascending() -> Loop:
    model = Net()
    optimizer = Ascending(model.parameters(), O.SGD, lr=0.1, momentum=0.9)

    def train(batch):
        for half in (optimizer.first_step, optimizer.second_step):
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            half()
        return loss

    return Loop({"model": model, "optim": optimizer, "inner": optimizer.inner}, train)


@row("optimizer in backward", "gate", "optimizer state")
def in_backward() -> Loop:
    model = Net()
    optimizers = {name: O.AdamW([p], lr=0.01) for name, p in model.named_parameters()}
    for name, p in model.named_parameters():

        def update(parameter, optimizer=optimizers[name]):
            optimizer.step()
            optimizer.zero_grad()

        p.register_post_accumulate_grad_hook(update)

    def train(batch):
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    return Loop({"model": model, "optims": optimizers}, train)


@row("GAN: two optimizers", "gate", "optimizer state")
def gan() -> Loop:
    maker, judge = Net(), nn.Linear(4, 1)
    of_maker, of_judge = O.Adam(maker.parameters(), lr=0.01), O.Adam(judge.parameters(), lr=0.01)

    def train(batch):
        noise = torch.randn(4, 8)
        real = judge(batch[0][:, :4]).mean() - judge(maker(noise).detach()).mean()
        of_judge.zero_grad()
        real.backward()
        of_judge.step()
        fake = judge(maker(noise)).mean()
        of_maker.zero_grad()
        fake.backward()
        of_maker.step()
        return real + fake

    return Loop({"g": maker, "d": judge, "opt_g": of_maker, "opt_d": of_judge}, train)


@row("two optimizers that take turns", "gate", "optimizer state")
def turns() -> Loop:
    model = Net()
    pair = [O.Adam(model.first.parameters(), lr=0.01), O.SGD(model.last.parameters(), lr=0.1, momentum=0.9)]
    done = {"steps": 0}

    def train(batch):
        model.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        pair[done["steps"] % 2].step()
        done["steps"] += 1
        return loss

    return Loop({"model": model, "a": pair[0], "b": pair[1], "done": done}, train)
