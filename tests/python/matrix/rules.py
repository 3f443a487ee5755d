"""The rules by which ckptd is exact, each with the switch that turns it off in a trainer of the matrix.

A row that stands for a rule must fail without it: a test whose row passes either way proves nothing. The switches
replace functions of the package in the process under test; the package itself has none.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from ckptd import checkpointer, gate, optim, parts, placement, restore, rng, state
from ckptd.batches import Batches


@dataclass
class Rule:
    """sentence: what ckptd does. switch_off: makes this process not do it."""

    sentence: str
    switch_off: Callable[[], None]


RULES: dict[str, Rule] = {}


def rule(name: str, sentence: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Makes the decorated function the switch of a new rule."""

    def add(switch_off: Callable[[], None]) -> Callable[[], None]:
        RULES[name] = Rule(sentence, switch_off)
        return switch_off

    return add


@rule("gate", "no optimizer changes lazy tensors before they are captured")
def _gate() -> None:
    kind = checkpointer.Checkpointer
    after = kind.after_update

    def too_late(self: Any, optimizer: Any, what: str = "step") -> None:
        self._gate()
        after(self, optimizer, what)

    kind.before_update = lambda self, optimizer, what="step": None
    kind.after_update = too_late


@rule("switches", "an optimizer's train() and eval() wait for the copy as its step() does")
def _switches() -> None:
    gate.watch_switches = lambda kind: None


@rule("lazy once a hook fired", "tensors of an optimizer that fires no hook are eager")
def _lazy_once_fired() -> None:
    gate.FiredHooks.has = lambda self, optimizer: True


@rule("updates only", "a save that is due waits for a step in which an optimizer stepped")
def _updates_only() -> None:
    checkpointer.Checkpointer._defer = lambda self, updates: False


@rule("eager", "what is no parameter of a hooked optimizer is copied before step() returns")
def _eager() -> None:
    state.State._is_lazy = lambda self, tensor: self._auto


@rule("only optimizers' parameters are lazy", "requires_grad alone makes no tensor lazy")
def _only_parameters() -> None:
    state.State._is_lazy = lambda self, tensor: tensor.requires_grad


@rule("optimizers' own state", "an optimizer whose state_dict() holds more is saved through it")
def _own_optimizer_state() -> None:
    state.saved_through = lambda optimizer: None


@rule("eager options", "a tensor learning rate is copied before step() returns")
def _eager_options() -> None:
    optim.Row = lambda name, tensor, lazily=True: parts.Row(name, tensor, lazily)


@rule("eager views", "of two views of one memory both are eager when one is")
def _eager_views() -> None:
    state.Table._spread_eager = lambda self, rows, forced: None


@rule("generators", "the generators are captured with the step and set last")
def _generators() -> None:
    rng.apply = lambda states: []


@rule("own generators", "generator objects of torch, NumPy and Python are captured where they are found")
def _own_generators() -> None:
    rng.set_generator_state = lambda generator, state: None


@rule("optimizer state", "state that the new process does not have yet is made from the checkpoint")
def _optimizer_state() -> None:
    placement._optimizer_state = lambda plan, part, document: (
        [plan._claim(name) for name in plan.names_under(f"{part.path}.state.")] and {}
    )


@rule("never cast", "optimizer state keeps its dtype, whatever the parameter's is")
def _never_cast() -> None:
    load = restore.Restorer._load

    def casting(self: Any, view: Any) -> None:
        load(self, view)
        for part in self._state.optimizers():
            part.optimizer.load_state_dict(part.optimizer.state_dict())  # casts to the parameter's dtype

    restore.Restorer._load = casting


@rule("plain values", "plain values of optimizers and objects come back with their types")
def _plain_values() -> None:
    plan_part = placement.plan_part

    def tensors_only(plan: Any, part: Any, survey: Any) -> None:
        before = len(plan.actions)
        plan_part(plan, part, survey)
        if not isinstance(part, optim.OptimizerPart) and not part.path.startswith("data"):
            del plan.actions[before:]

    restore.plan_part = tensors_only


@rule("options", "options of the parameter groups come back")
def _options() -> None:
    placement._options = lambda plan, live, saved: (
        [plan._claim(ref.name) for value in saved.values() for ref in placement.tree.references(value)] and {} or {}
    )


@rule("everything", "what no optimizer updates is saved too")
def _everything() -> None:
    into = placement.Plan.into

    def updated_only(self: Any, name: str, tensor: torch.Tensor) -> None:
        self._claim(name) if not tensor.requires_grad or not tensor.is_leaf else into(self, name, tensor)

    placement.Plan.into = updated_only


@rule("whole modules", "parameters that no optimizer updates are saved too")
def _whole_modules() -> None:
    plan_part = placement.plan_part

    def updated_only(plan: Any, part: Any, found: Any) -> None:
        if isinstance(part, parts.ModulePart):
            kept = [row for row in found.stable if row.lazy]
            for row in found.stable:
                plan._claim(row.name)
            found = parts.Survey(kept, found.volatile)
        plan_part(plan, part, found)

    restore.plan_part = updated_only


@rule("live containers", "dicts and lists are written back, and their tensors filled in place")
def _live_containers() -> None:
    placement._plan_tree = lambda plan, part, existing: [plan._claim(ref.name) for ref in _references(plan, part)]


def _references(plan: Any, part: Any) -> Any:
    return placement.tree.references(plan.plain.get(part.path))


@rule("into the same tensors", "a restore fills the tensors that the trainer has; ties and references stay")
def _same_tensors() -> None:
    load = restore.Restorer._load

    def replacing(self: Any, view: Any) -> None:
        load(self, view)
        modules = [part.owner for part in self._state.parts if isinstance(part, parts.ModulePart)]
        for module in [inner for owner in modules for inner in owner.modules()]:
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    new = torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)
                    module._parameters[name] = new

    restore.Restorer._load = replacing


@rule("moves", "tensors are found again at each save; one that moved is registered again")
def _moves() -> None:
    state.Table._compare = lambda self, block, begin: None
    state.Table._same_objects = lambda self, row, count, held: True
    optim.id = parts.id = lambda item: 0  # type: ignore[attr-defined]


@rule("staging", "what is no plain run of bytes is copied element by element")
def _staging() -> None:
    state.is_plain = lambda tensor: True


@rule("position", "the position counts batches handed out")
def _position() -> None:
    get = Batches.state_dict
    Batches.state_dict = lambda self: {**get(self), "batch": 0}


@rule("order", "the order of an epoch is drawn again from the generators with which it began")
def _order() -> None:
    Batches._set_generators = lambda self, states: None


@rule("generators after iter", "what making the iterator draws does not count")
def _generators_after_iter() -> None:
    Batches._resumed = _without_second_apply(Batches._resumed)


def _without_second_apply(resumed: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def changed(self: Any) -> Any:
        apply, calls = rng.apply, []

        def first_only(states: Any) -> None:
            calls.append(states)
            if len(calls) == 1:
                apply(states)

        rng.apply = first_only
        try:
            return resumed(self)
        finally:
            rng.apply = apply

    return changed


@rule("loader's own state", "a loader that has state_dict and load_state_dict is resumed through them")
def _own_state() -> None:
    get = Batches.state_dict
    Batches.state_dict = lambda self: {**get(self), "loader": None, "batch": 0}


@rule("generators after the loader's own state", "what a loader that saves its own position draws anew does not count")
def _generators_after_own_state() -> None:
    resumed = Batches._resumed_by_itself

    def drawing(self: Any, resume: Any) -> Any:
        apply = rng.apply
        rng.apply = lambda states: []
        try:
            return resumed(self, resume)
        finally:
            rng.apply = apply

    Batches._resumed_by_itself = drawing


@rule("seeds of samplers", "a sampler that seeds its generator itself gets its seed back")
def _seeds_of_samplers() -> None:
    sys.modules[Batches.__module__]._seeded = lambda loader: []  # type: ignore[attr-defined]


@rule("the iterator before the generators", "a loader in the state has made its iterator when the generators are set")
def _iterator_first() -> None:
    state._loading = lambda value: value.load_state_dict


@rule("overlaps", "elements that share memory are written through the memory")
def _overlaps() -> None:
    restore._overlaps = lambda tensor: False


@rule("gate() by hand", "gate() returns when captured tensors may be changed")
def _gate_by_hand() -> None:
    checkpointer.Checkpointer.gate = lambda self, stream=None: None


@rule("self-check", "lazy tensors are digested, and compared with what was captured")
def _self_check() -> None:
    checkpointer.SelfCheck.due = lambda self: False
