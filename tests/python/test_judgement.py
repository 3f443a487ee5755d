"""What the checkpointer makes of libckpt's answers; a scripted double stands for the library."""

import copy
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

import ckptd
from ckptd import _lib
from double import make, train, trainee  # noqa: F401

def test_order_of_calls(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, every=2)
    for step in range(1, 5):
        train(model, optimizer)
        ck.step(step)
    assert double.log == [
        *("gate", "register", "tick 1", "gate", "save 2 checked", "gate", "tick 3", "gate", "save 4"),
    ]
    assert double.eager() == {"m.1.running_mean", "m.1.running_var", "m.1.num_batches_tracked"}
    assert "o.state.0.weight.momentum_buffer" in {column.name for column in double.tables[0]}


def test_the_gate_is_seen_for_every_kind_of_optimizer(make):
    model, optimizer = trainee()

    class Wrapper:  # does not derive from Optimizer
        def __init__(self, inner):
            self.inner = inner

        def step(self):
            self.inner.step()

    in_backward = [torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()]
    ck, double = make({"m": model, "o": optimizer})
    loss = model(torch.randn(4, 3)).square().sum()
    for parameter, inner in zip(model.parameters(), in_backward):
        parameter.register_post_accumulate_grad_hook(lambda _, inner=inner: inner.step())
    loss.backward()
    assert double.log.count("gate") == len(in_backward)
    Wrapper(optimizer).step()
    assert double.log.count("gate") == len(in_backward) + 1
    ck.gate()
    ck.close()
    optimizer.step()
    assert double.log.count("gate") == len(in_backward) + 2


def test_a_move_registers_again_and_saves(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, on_error="raise")
    train(model, optimizer)
    ck.save(1)
    model[0].weight.data = model[0].weight.data.clone()
    save = ck.save(2)
    assert double.log[-2:] == ["register", "save 2 checked"] and save.state == "capturing"
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    ck.save(3)
    ck.save(4)
    assert double.log[-3:] == ["register", "save 3 checked", "save 4"]


def test_torn_tensors_are_named_and_made_eager(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, every=1)
    train(model, optimizer)
    ck.step(1)
    lazy = [i for i, column in enumerate(double.tables[-1]) if not column.eager]
    double.fate[1], double.torn_columns = (_lib.DROPPED, "TORN"), lazy[:1]
    name = double.tables[-1][lazy[0]].name
    train(model, optimizer)
    with pytest.warns(UserWarning, match=f"{name} changed between"):
        ck.step(2)
    assert name in double.eager() and double.log[-2:] == ["register", "save 2 checked"]
    assert ck.dropped == {"TORN": 1}


def tear(double, step, columns):
    double.fate[step], double.torn_columns = (_lib.DROPPED, "TORN"), columns


def test_a_loop_that_only_saves_hears_of_torn_tensors_too(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer})
    train(model, optimizer)
    ck.save(100)
    lazy = [i for i, column in enumerate(double.tables[-1]) if not column.eager]
    name = double.tables[-1][lazy[0]].name
    tear(double, 100, lazy[:1])
    train(model, optimizer)
    with pytest.warns(UserWarning, match=f"{name} changed between"):
        ck.save(200)
    assert name in double.eager() and double.log[-2:] == ["register", "save 200 checked"]
    assert ck.dropped == {"TORN": 1}


@pytest.mark.parametrize("save", [ckptd.Checkpointer.step, ckptd.Checkpointer.save])
def test_torn_tensors_that_have_no_name_are_looked_for_again(make, save):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, every=1)
    for step in (1, 2):
        train(model, optimizer)
        save(ck, step)
    tear(double, 1, [])
    train(model, optimizer)
    with pytest.warns(UserWarning, match="tensors changed between .* the next save is checked again"):
        save(ck, 3)
    assert double.log[-1] == "save 3 checked" and double.log.count("register") == 1
    train(model, optimizer)
    save(ck, 4)
    assert double.log[-1] == "save 4" and ck.dropped == {"TORN": 1}


@pytest.mark.parametrize("save", [ckptd.Checkpointer.step, ckptd.Checkpointer.save])
def test_a_save_looks_back_once(make, save):
    model, optimizer = trainee()
    ck, _ = make({"m": model, "o": optimizer}, every=1)
    train(model, optimizer)
    save(ck, 1)
    looks, look = [], ck._review
    ck._review = lambda: looks.append(look())
    train(model, optimizer)
    save(ck, 2)
    assert len(looks) == 1


class Silent(torch.optim.SGD):
    """No hook ever fires: torch takes `step` for hooked already."""

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.add_(parameter.grad, alpha=-0.1)

    step.hooked = True


def test_what_belongs_to_an_optimizer_is_lazy_only_once_it_fired_a_hook(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, every=1)
    ck.step(1)
    assert double.eager() == {column.name for column in double.tables[-1]}
    for step in (2, 3):
        train(model, optimizer)
        ck.step(step)
    assert "m.0.weight" not in double.eager() and len(double.tables) == 2
    model, optimizer = trainee(lambda p: Silent(p, lr=0.1))
    ck, double = make({"m": model, "o": optimizer}, every=1)
    for step in (1, 2):
        train(model, optimizer)
        ck.step(step)
    assert "gate" not in double.log and double.eager() == {column.name for column in double.tables[-1]}


def test_what_two_optimizers_update_is_lazy_only_when_both_fire(make):
    model, optimizer = trainee()
    other = Silent(model[0].parameters(), lr=0.1)
    ck, double = make({"m": model, "o": optimizer, "silent": other})
    train(model, optimizer)
    ck.save(1)
    assert "m.0.weight" in double.eager() and "m.1.weight" not in double.eager()


def test_a_save_waits_for_a_step_that_updates_something(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, every=2)
    train(model, optimizer)
    assert ck.step(1) is None
    assert ck.step(2) is None and ck.step(3) is None  # gradients are still being accumulated
    train(model, optimizer)
    assert ck.step(4) is not None
    train(model, optimizer)
    assert ck.step(5) is None
    ck.gate()  # an update without a torch optimizer
    assert ck.step(6) is not None
    assert [entry for entry in double.log if entry != "gate"] == [
        *("register", "tick 1", "tick 2 unchanged", "tick 3 unchanged", "save 4 checked", "tick 5", "save 6"),
    ]


def test_hooks_that_fire_no_longer_are_told_and_saves_go_on(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, every=1)
    train(model, optimizer)
    ck.step(1)
    with pytest.warns(UserWarning, match="no optimizer has stepped for 1000 steps"):
        saves = [ck.step(step) for step in range(2, 1005)]
    assert [save is None for save in saves] == [True] * 1000 + [False] * 3
    assert double.eager() == {column.name for column in double.tables[-1]}


def test_a_failing_state_never_stops_training(make):
    class Broken:
        fine = True

        def state_dict(self):
            if self.fine:
                return {}
            raise RuntimeError("no state today")

        def load_state_dict(self, state):
            pass

    broken = Broken()
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer, "b": broken}, every=1)
    broken.fine = False
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in (1, 2, 3):
            train(model, optimizer)
            assert ck.step(step).state == "dropped"
    assert len(caught) == 1 and "no state today" in str(caught[0].message)
    broken.fine = True
    train(model, optimizer)
    assert ck.step(4).state == "capturing"


def test_drops_are_counted_by_reason_and_can_be_raised(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer})
    double.refuse = {1: "NO_FREE_SLOT", 2: "NO_FREE_SLOT", 3: "BELOW_FLOOR"}
    with pytest.warns(UserWarning) as caught:
        saves = [ck.save(step) for step in (1, 2, 3)]
    assert [save.dropped_because for save in saves] == ["NO_FREE_SLOT", "NO_FREE_SLOT", "BELOW_FLOOR"]
    assert ck.dropped == {"NO_FREE_SLOT": 2, "BELOW_FLOOR": 1} and len(caught) == 2
    assert isinstance(saves[0].error, ckptd.SaveError) and "save less often" in str(saves[0].error)
    strict, double = make({"m": model, "o": optimizer}, on_error="raise")
    double.refuse = {1: "NO_FREE_SLOT"}
    with pytest.raises(ckptd.SaveError, match="as the library says"):
        strict.save(1)


GROWING = {
    "kept.losses": lambda kept: kept["losses"].append(torch.ones(())),
    "kept.history": lambda kept: kept.update(history=torch.cat([kept["history"], torch.ones(1)])),
}


def kept_and_saves(make, grow, steps, **options):
    """What is told at each save of a state that `grow` changes before it; the agent has no memory for it yet."""
    kept = {"losses": [torch.ones(())], "history": torch.ones(1), "fixed": torch.ones(2)}
    ck, double = make({"kept": kept}, **options)
    double.refuse = dict.fromkeys(steps, "LAYOUT_PREPARING")
    told = []
    for step in steps:
        grow(kept, step)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ck.save(step)
        told.append([str(one.message) for one in caught])
    return ck, double, told


@pytest.mark.parametrize("name", GROWING)
def test_what_grows_at_every_save_is_named(make, name):
    ck, _, told = kept_and_saves(make, lambda kept, step: GROWING[name](kept), range(1, 6))
    assert [len(each) for each in told] == [1, 0, 1, 0, 0] and "later saves succeed" in told[0][0]
    assert f"LAYOUT_PREPARING: {name} changes its size at every save." in told[2][0] and "later" not in told[2][0]
    assert "Next step: keep it at one size, or as plain numbers" in told[2][0]
    assert ck.dropped == {"LAYOUT_PREPARING": 5}


def test_two_that_grow_are_both_named(make):
    _, _, told = kept_and_saves(make, lambda kept, step: [grow(kept) for grow in GROWING.values()], range(1, 4))
    assert "kept.history, kept.losses change their size" in told[2][0]


def test_what_grew_is_raised_with_its_own_next_step(make):
    with pytest.raises(ckptd.SaveError, match="later saves succeed"):
        kept_and_saves(make, lambda kept, step: None, [1], on_error="raise")
    kept = {"losses": [torch.ones(())]}
    ck, double = make({"kept": kept}, on_error="raise")
    for step in (1, 2, 3):
        double.refuse = {step: "LAYOUT_PREPARING"}
        kept["losses"].append(torch.ones(()))
        with pytest.raises(ckptd.SaveError) as caught:
            ck.save(step)
    assert "kept.losses changes its size" in str(caught.value) and str(caught.value).count("Next step") == 1
    assert caught.value.code == "LAYOUT_PREPARING"


@pytest.mark.parametrize(
    "grow",
    [
        lambda kept, step: GROWING["kept.losses" if step % 2 else "kept.history"](kept),
        lambda kept, step: kept.update(fixed=torch.ones(2)),
        lambda kept, step: step in (3, 4, 6, 7) and GROWING["kept.losses"](kept),
    ],
    ids=["now one, now the other", "the same size elsewhere", "not at every save"],
)
def test_layouts_that_are_only_being_prepared_are_not_blamed(make, grow):
    _, _, told = kept_and_saves(make, grow, range(1, 8))
    assert "changes its size" not in str(told)


def test_a_save_that_is_started_ends_the_row(make):
    kept = {"losses": [torch.ones(())]}
    ck, double = make({"kept": kept})
    double.refuse = dict.fromkeys((1, 2, 4, 5), "LAYOUT_PREPARING")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 6):
            kept["losses"].append(torch.ones(()))
            ck.save(step)
    assert len(caught) == 1 and "changes its size" not in str(caught[0].message)


def test_release_drops_every_reference(make):
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer})
    train(model, optimizer)
    ck.save(1)
    memory = StorageWeakRef(model[0].weight.untyped_storage())
    model[0].weight.data = torch.zeros(3, 3)
    assert not memory.expired()  # the copy thread may still read it
    ck.release()
    assert double.log[-1] == "gate" and memory.expired()
    ck.save(2)
    assert double.log[-2:] == ["register", "save 2 checked"]


@pytest.mark.parametrize(
    "options, error",
    [
        ({"lazy": "all"}, ValueError),
        ({"selfcheck": "maybe"}, ValueError),
        ({"every": 0}, ValueError),
        ({"on_error": "ignore"}, ValueError),
        ({"rank": 3, "world_size": 2}, ValueError),
    ],
)
def test_bad_arguments(make, options, error):
    with pytest.raises(error):
        make(list(trainee()), **options)


@pytest.mark.parametrize("kind", ["modules and optimizers", "a flat dict of tensors"])
def test_a_save_runs_no_python_statement_per_tensor(make, kind):
    lines = []
    for count in (20, 80):
        model = nn.ModuleList([nn.Linear(2, 2) for _ in range(count)])
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        tensors = {str(index): torch.zeros(2) for index in range(count)}
        ck, _ = make({"m": model, "o": optimizer} if kind.startswith("modules") else {"ema": tensors})
        ck.save(1)
        lines.append(count_lines(lambda ck=ck: ck.save(2)))
    assert lines[0] == lines[1] and lines[0] < 1000


def count_lines(function):
    """Python statements that run inside `function`."""
    seen = 0

    def trace(frame, event, argument):
        nonlocal seen
        seen += event == "line"
        return trace

    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(None)
    return seen


def test_two_checkpointers_are_both_gated(make):
    model, optimizer = trainee()
    doubles = [make({"m": model, "o": optimizer})[1] for _ in range(2)]
    train(model, optimizer)
    assert [double.log for double in doubles] == [["gate"], ["gate"]]
