"""Where the hooks of optimizers are not to be had: in CUDA graphs, where torch takes them away, in other methods."""

import warnings

import pytest
import torch
from accelerate import Accelerator

from double import make, train, trainee  # noqa: F401
from matrix.rows_wrappers import ScheduleFree


@pytest.fixture
def graph(monkeypatch):
    """Stands for a CUDA graph, which this machine cannot have: a switch for "what runs now is being captured"."""
    inside = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: bool(inside))
    return inside


def test_an_optimizer_inside_a_graph_is_refused_and_captured_eagerly(make, graph):
    model, optimizer = trainee()
    ck, session = make({"model": model, "optim": optimizer}, every=1)
    train(model, optimizer)
    ck.step(1)
    assert not {"model.0.weight", "optim.state.0.weight.momentum_buffer"} & session.eager()

    graph.append("capture")
    with pytest.warns(UserWarning, match=r"UNGATED: the step\(\) of SGD .* CUDA graph.*keep step\(\) out of the graph"):
        train(model, optimizer)
    graph.clear()
    ck.step(2)
    assert session.eager() == {column.name for column in session.tables[-1]}
    assert ck.dropped["UNGATED"] == 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # told once
        graph.append("capture")
        train(model, optimizer)
        graph.clear()
    ck.step(3)  # a replay: no hook fires, no version moves, and it is an update all the same
    ck.step(4)
    assert session.log[-2:] == ["save 3", "save 4"]


def test_gate_inside_a_graph_is_refused(make, graph):
    model, optimizer = trainee()
    ck, _ = make({"model": model, "optim": optimizer}, every=1)
    ck.gate()
    graph.append("capture")
    with pytest.warns(UserWarning, match=r"UNGATED: ck.gate\(\) does nothing .* call it before each graph.replay\(\)"):
        ck.gate()


def test_hooks_that_torch_takes_away_are_told_and_saves_go_on(make, monkeypatch):
    model, optimizer = trainee()
    ck, session = make({"model": model, "optim": optimizer}, every=1)
    for step in (1, 2):
        train(model, optimizer)
        ck.step(step)
    assert "model.0.weight" not in session.eager()

    bare = torch.optim.SGD.step.__wrapped__  # what torch 2.2 does when torch.compile is first used
    monkeypatch.setattr(bare, "hooked", True, raising=False)
    monkeypatch.setattr(torch.optim.SGD, "step", bare)
    train(model, optimizer)
    with pytest.warns(UserWarning, match="UNGATED: torch.compile took the hooks .* captured eagerly"):
        assert ck.step(3) is not None
    assert session.eager() == {column.name for column in session.tables[-1]}
    train(model, optimizer)
    assert ck.step(4) is not None


@pytest.mark.parametrize("prepared", [False, True])
def test_a_switch_of_a_schedule_free_optimizer_waits_and_is_no_update(make, prepared):
    model, optimizer = trainee(lambda p: ScheduleFree(p, lr=0.1))
    if prepared:
        optimizer = Accelerator(cpu=True).prepare(optimizer)
    ck, session = make({"model": model, "optim": optimizer}, every=1)
    for step in (1, 2):
        optimizer.train()
        train(model, optimizer)
        ck.step(step)
    assert "model.1.bias" not in session.eager()

    seen, weight = [], model[1].bias
    session.gate = lambda: seen.append(weight.detach().clone()) and 0
    for switch in (optimizer.eval, optimizer.train):
        before = weight.detach().clone()
        switch()
        assert torch.equal(seen.pop(), before) and not torch.equal(weight, before)
    assert ck.step(3) is None  # gradients may have been accumulated


def test_a_wrapper_that_always_has_both_methods_opens_no_gate(make):
    model, optimizer = trainee()
    optimizer = Accelerator(cpu=True).prepare(optimizer)
    ck, session = make({"model": model, "optim": optimizer}, every=1)
    train(model, optimizer)
    ck.step(1)
    gates = session.log.count("gate")
    optimizer.train()
    optimizer.eval()
    assert session.log.count("gate") == gates


@pytest.mark.parametrize("found", [staticmethod(lambda: "kept"), classmethod(lambda kind: "kept"), 7, None])
def test_what_is_no_method_is_left_alone(make, found):
    kind = type("Odd", (torch.optim.SGD,), {"train": found, "eval": lambda self: "kept"})
    model, optimizer = trainee(lambda p: kind(p, lr=0.1))
    make({"model": model, "optim": optimizer})
    train(model, optimizer)
    assert vars(kind)["train"] is found and not hasattr(kind.eval, "watched")
