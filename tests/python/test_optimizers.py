"""Optimizers inside optimizers: each one's state is saved, or it is said that it would be lost."""

import pytest
import torch
from ckptd.optim import OptimizerPart
from ckptd.state import State
from matrix.rows_wrappers import Cooling, Delegating, Hidden, Listed, Merged
from memory_image import Image
from torch import nn


def adam(model=None):
    return torch.optim.AdamW((model or nn.Linear(2, 2)).parameters(), lr=0.01)


def prepared(optimizer):
    from accelerate import Accelerator

    return Accelerator(cpu=True).prepare(optimizer)


def holding(name, value):
    """An optimizer that has `value` as its attribute `name`."""
    optimizer = adam(nn.Linear(3, 3))
    setattr(optimizer, name, value)
    return optimizer


PLACES = {
    ".inner": lambda: Hidden(adam()),
    ".inner.inner": lambda: Delegating(Hidden(adam())),
    ".kept[0]": lambda: holding("kept", [adam()]),
    ".kept[1]": lambda: holding("kept", (None, adam())),
    ".kept['muon']": lambda: holding("kept", {"muon": adam()}),
    ".kept['muon'][0][1]": lambda: holding("kept", {"muon": [(0, adam())]}),
    ".optimizers[0]": lambda: Merged(nn.Linear(2, 2)),
    ".optimizer.optimizers[0]": lambda: prepared(Merged(nn.Linear(2, 2))),
    ".optimizer.kept[0]": lambda: prepared(holding("kept", [adam()])),
}


def state_of(optimizer, *more):
    """A state that has what these optimizers update."""
    parameters = [p for one in (optimizer, *more) for group in one.param_groups for p in group["params"]]
    return {"p": parameters, "optim": optimizer, "more": list(more)}


@pytest.mark.parametrize("place", PLACES)
def test_an_optimizer_that_nobody_saves_is_named_by_its_place(place):
    optimizer = PLACES[place]()
    with pytest.raises(TypeError, match="would be lost") as caught:
        State(state_of(optimizer))
    assert f"a {type(optimizer).__name__} holds another optimizer in {place}, whose state" in str(caught.value)


def test_each_that_is_given_too_is_enough():
    both = Merged(nn.Linear(2, 2))
    State(state_of(both, *both.optimizers))
    with pytest.raises(TypeError, match=r"in \.optimizers\[1\], whose"):
        State(state_of(both, both.optimizers[0]))
    cooling = Cooling(nn.Linear(2, 2).parameters())
    State(state_of(Hidden(cooling), cooling))  # saved through its state_dict(), not by its state
    both = Listed(nn.Linear(2, 2))
    State(state_of(Hidden(both), both))


def test_optimizers_that_hold_each_other_are_all_found():
    one, other = adam(), adam()
    one.other, other.other = other, [one]
    State(state_of(one, other))
    with pytest.raises(TypeError, match=r"in \.other, whose"):
        State(state_of(one))


def train(model, optimizer):
    model.zero_grad()
    model(torch.randn(4, 2)).square().sum().backward()
    optimizer.step()


@pytest.mark.parametrize(
    "make",
    [
        lambda model: Listed(model), lambda model: prepared(Listed(model)), lambda model: Delegating(Listed(model)),
        lambda model: Cooling(model.parameters()), lambda model: prepared(Cooling(model.parameters())),
        lambda model: Delegating(Cooling(model.parameters())),
        lambda model: Delegating(prepared(Cooling(model.parameters()))),
    ],
    ids=range(7),
)  # fmt: skip
def test_what_one_inside_shows_is_saved(make):
    runs = []
    for _ in range(2):
        torch.manual_seed(len(runs))
        model = nn.Linear(2, 2)
        runs.append((model, make(model)))
    for _ in range(3):
        train(*runs[0])
    Image({"model": runs[0][0], "optim": runs[0][1]}).restore({"model": runs[1][0], "optim": runs[1][1]})
    for model, optimizer in runs:
        torch.manual_seed(7)
        for _ in range(3):
            train(model, optimizer)
    assert torch.equal(runs[0][0].weight, runs[1][0].weight) and torch.equal(runs[0][0].bias, runs[1][0].bias)


@pytest.mark.parametrize("make", [adam, lambda model: Delegating(prepared(adam(model)))])
def test_one_that_only_passes_on_stays_lazy(make):
    model = nn.Linear(2, 2)
    optimizer = make(model)
    train(model, optimizer)
    (part,) = State({"model": model, "optim": optimizer}).optimizers()
    assert isinstance(part, OptimizerPart) and part.steppers()[-1].state is optimizer.state


def test_one_whose_state_dict_is_collective_is_not_asked():
    class Sharded(torch.optim.SGD):
        def state_dict(self):
            raise AssertionError("asked")

        def consolidate_state_dict(self):
            pass

    model = nn.Linear(2, 2)
    assert State({"model": model, "optim": Sharded(model.parameters())}).optimizers()
