"""Rows about optimizers that are not torch's own, and about several of them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from .rows import Loop, Net, loss_of, row, updating
from .rows_optimizers import optimizer_row

O = torch.optim


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


class Both(O.Optimizer):
    """Two optimizers in a list: one of the matrices and one of the rest, as Muon wants it."""

    def __init__(self, model: nn.Module) -> None:
        matrices = [p for p in model.parameters() if p.dim() > 1]
        rest = [p for p in model.parameters() if p.dim() < 2]
        self.optimizers = [O.SGD(matrices, lr=0.1, momentum=0.9), O.AdamW(rest, lr=0.01)]
        super().__init__([*matrices, *rest], {})
        self.param_groups = [group for one in self.optimizers for group in one.param_groups]

    def step(self, closure: Any = None) -> None:
        for one in self.optimizers:
            one.step()


class Listed(Both):
    """Shows a list."""

    def state_dict(self) -> Any:
        return [one.state_dict() for one in self.optimizers]

    def load_state_dict(self, state: Any) -> None:
        for one, saved in zip(self.optimizers, state):
            one.load_state_dict(saved)


class Merged(Both):
    """Shows what a single optimizer would."""

    def state_dict(self) -> Any:
        shown = [one.state_dict() for one in self.optimizers]
        state = {f"{index}.{key}": value for index, one in enumerate(shown) for key, value in one["state"].items()}
        return {"state": state, "param_groups": [group for one in shown for group in one["param_groups"]]}


def of_a_list(wrapper: type[Both]) -> Loop:
    model = Net()
    optimizer = wrapper(model)
    return Loop({"model": model, "optim": optimizer}, updating(model, optimizer))


@row("a list of optimizers in one whose state_dict() is a list", "optimizers' own state")
def listed() -> Loop:
    return of_a_list(Listed)


@row(
    "a list of optimizers in one whose state_dict() is as a single one's",
    refused="optim: a Merged holds another optimizer in .optimizers[0], whose state would be lost; "
    "put that one (SGD) into `state` as well",
)
def merged() -> Loop:
    return of_a_list(Merged)


@row(
    "a list of optimizers in one without a state_dict() of its own",
    refused="optim: a Both holds another optimizer in .optimizers[0], whose state would be lost; "
    "put that one (SGD) into `state` as well",
)
def both() -> Loop:
    return of_a_list(Both)


@row("the same list, its optimizers given too", "gate", "optimizer state")
def both_and_inner() -> Loop:
    loop = of_a_list(Both)
    loop.state["inner"] = list(loop.state["optim"].optimizers)
    return loop


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


class ScheduleFree(O.Optimizer):
    """As schedulefree's: its parameters are one average while it trains and another one while it does not."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr, "train_mode": False})

    def train(self) -> None:
        self._switch(True, 0.1)

    def eval(self) -> None:
        self._switch(False, 1 - 1 / 0.9)

    def _switch(self, training: bool, weight: float) -> None:
        for group in self.param_groups:
            for p in group["params"] if group["train_mode"] != training else ():
                if "z" in self.state[p]:
                    p.data.lerp_(self.state[p]["z"], weight)
            group["train_mode"] = training

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                z = self.state[p].setdefault("z", p.clone())
                p.lerp_(z, 0.3).sub_(p.grad, alpha=0.4 * group["lr"])
                z.sub_(p.grad, alpha=group["lr"])


@row("a schedule-free optimizer, saved in its eval() mode", "gate", "optimizer state", "switches")
def schedule_free() -> Loop:
    model = Net()
    optimizer = ScheduleFree(model.parameters(), lr=0.1)
    update = updating(model, optimizer)

    def train(batch):
        loss = update(batch)
        optimizer.eval()
        return loss * model(batch[0]).sum()

    return Loop({"model": model, "optim": optimizer}, train, before=lambda n: optimizer.train())


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
