"""Saves that are asked for inside an optimizer's update: half of it would be sealed as a whole step."""

import gc
import signal

import ckptd
import pytest
import torch
from double import make, train, trainee  # noqa: F401
from matrix.rows_wrappers import Delegating, ScheduleFree
from test_checkpointer import accepted, until_ready


class Halved(torch.optim.SGD):
    """Calls `between` when half of its update is done, as a signal handler would be."""

    between = None

    @torch.no_grad()
    def step(self, closure=None):
        parameters = [p for group in self.param_groups for p in group["params"]]
        for index, p in enumerate(parameters):
            p.add_(1)
            if index == 0 and self.between is not None:
                self.between()


def interrupt():
    raise KeyboardInterrupt


def train_interrupted(model, optimizer):
    optimizer.between = interrupt
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer)
    optimizer.between = None


def halved(make_one, wrapped=lambda optimizer: optimizer, **options):
    """A checkpointer that has saved step 1, and what it saves."""
    model, optimizer = trainee(lambda p: Halved(p, lr=0.1))
    ck, session = make_one({"model": model, "optim": wrapped(optimizer)}, **options)
    train(model, optimizer)
    assert ck.save(1).state == "capturing"
    return model, optimizer, ck, session


TOLD = r"REFUSED: step 2: an optimizer's step had not ended \({}a Halved\), so what it updates may be half new; save"


@pytest.mark.parametrize("save", [ckptd.Checkpointer.step, ckptd.Checkpointer.save])
def test_a_save_in_the_middle_of_an_update_is_dropped_and_told(make, save):
    model, optimizer, ck, session = halved(make, every=1)
    saves = []
    optimizer.between = lambda: saves.append(save(ck, 2))
    with pytest.warns(UserWarning, match=TOLD.format("optim, ") + ".* If it failed, its next step"):
        train(model, optimizer)
    assert saves[0].state == "dropped" and saves[0].dropped_because == "REFUSED"
    assert save(ck, 3).state == "capturing"
    assert ck.dropped == {"REFUSED": 1} and [entry for entry in session.log if "save" in entry][1:] == ["save 3"]


def test_in_a_signal_handler(make):
    model, optimizer, ck, _ = halved(make)
    saves = []
    before = signal.signal(signal.SIGUSR1, lambda *_: saves.append(ck.save(2)))
    optimizer.between = lambda: signal.raise_signal(signal.SIGUSR1)
    with pytest.warns(UserWarning, match=TOLD.format("optim, ")):
        train(model, optimizer)
    signal.signal(signal.SIGUSR1, before)
    assert saves[0].dropped_because == "REFUSED" and ck.save(3).state == "capturing"


def test_an_update_that_failed_is_told_until_the_next_one_has_ended(make):
    model, optimizer, ck, _ = halved(make)
    train_interrupted(model, optimizer)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.warns(UserWarning, match=TOLD.format("optim, ")):
        assert ck.save(2).state == "dropped"
    train(model, other)  # ends nothing of the one that failed
    train_interrupted(model, optimizer)
    assert ck.save(3).state == "dropped" and ck.dropped["REFUSED"] == 2
    train(model, optimizer)
    assert ck.save(4).state == "capturing"


def test_one_that_is_inside_another_one_is_named_by_its_place(make):
    model, optimizer, ck, _ = halved(make, lambda optimizer: Delegating(optimizer))
    train_interrupted(model, optimizer)
    with pytest.warns(UserWarning, match=TOLD.format(r"optim\.inner, ")):
        ck.save(2)
    train(model, optimizer)
    assert ck.save(3).state == "capturing"


class Outer(torch.optim.SGD):
    """Steps two others, and is itself hooked."""

    def step(self, closure=None):
        for inner in self.inner:
            inner.step()


def test_nested_updates_end_with_the_outermost(make):
    model, outer = trainee(lambda p: Outer(p, lr=0.1))
    outer.inner = [Halved([p], lr=0.1) for p in model.parameters()]
    ck, _ = make({"model": model, "optim": outer, "inner": outer.inner})
    train(model, outer)
    saves = []
    outer.inner[2].between = lambda: saves.append(ck.save(2))
    with pytest.warns(UserWarning, match=r"step had not ended \(optim, a Outer\)"):
        train(model, outer)
    outer.inner[2].between = interrupt
    with pytest.raises(KeyboardInterrupt):
        train(model, outer)
    saves.append(ck.save(3))
    outer.inner[2].between = None
    train(model, outer)
    assert [save.state for save in [*saves, ck.save(4)]] == ["dropped", "dropped", "capturing"]


def test_a_closure_is_inside_the_update(make):
    model, optimizer = trainee(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3))
    ck, _ = make({"model": model, "optim": optimizer})
    saves = []

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 3)).square().sum()
        loss.backward()
        saves.append(ck.save(len(saves) + 1))
        return loss

    with pytest.warns(UserWarning, match=r"step had not ended \(optim, a LBFGS\)"):
        optimizer.step(closure)
    assert saves and {save.state for save in saves} == {"dropped"}
    assert ck.save(9).state == "capturing"


def test_an_optimizer_of_something_else_blocks_no_save(make):
    model, optimizer = trainee()
    ck, _ = make({"model": model, "optim": optimizer})
    elsewhere, other = trainee(lambda p: Halved(p, lr=0.1))
    for step in (1, 2):
        train_interrupted(elsewhere, other)
        train(model, optimizer)
        assert ck.save(step).state == "capturing"


def test_one_that_is_not_in_the_state_but_updates_it_does(make):
    model, optimizer, ck, _ = halved(make)
    other = Halved(model.parameters(), lr=0.1)
    train_interrupted(model, other)
    with pytest.warns(UserWarning, match=TOLD.format("")):
        assert ck.save(2).state == "dropped"
    del other
    gc.collect()
    assert ck.save(3).state == "capturing"  # nobody can write any more


def test_a_skipped_step_is_no_update(make):
    model, optimizer, ck, _ = halved(make)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    model(torch.randn(4, 3)).square().sum().mul(1e30).backward()
    scaler.scale(torch.zeros(()))
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.fill_(torch.inf)
    scaler.step(optimizer)
    assert ck.save(2).state == "capturing"


@pytest.mark.parametrize("switch", ["train", "eval"])
def test_a_switch_that_failed_is_told_too(make, switch, monkeypatch):
    model, optimizer = trainee(lambda p: ScheduleFree(p, lr=0.1))
    ck, _ = make({"model": model, "optim": optimizer})
    optimizer.train()
    train(model, optimizer)
    monkeypatch.setattr(optimizer, "_switch", lambda *_: interrupt())
    with pytest.raises(KeyboardInterrupt):
        getattr(optimizer, switch)()
    monkeypatch.undo()
    with pytest.warns(UserWarning, match=rf"an optimizer's {switch} had not ended \(optim, a ScheduleFree\).*{switch}\(\)"):
        assert ck.save(1).state == "dropped"
    train(model, optimizer)
    assert ck.save(2).state == "dropped"
    getattr(optimizer, switch)()
    assert ck.save(3).state == "capturing"


def test_what_could_be_captured_post_mortem_is_not_half_done(make):
    model, optimizer, ck, session = halved(make, postmortem=True)
    session.use_streams = lambda streams: 0
    train_interrupted(model, optimizer)
    with pytest.warns(UserWarning, match=TOLD.format("optim, ")):
        ck.step(2)
    train(model, optimizer)
    ck.step(3)
    assert [entry for entry in session.log if "tick" in entry] == ["tick 3 published"]


def test_a_restore_makes_it_whole(agent):
    model, optimizer = trainee(lambda p: Halved(p, lr=0.1))
    with ckptd.Checkpointer({"model": model, "optim": optimizer}, job="j") as ck:
        ck.restore()
        train(model, optimizer)
        step = accepted(ck, until_ready(ck, 1)).step
        assert ck._pending[-1].durable(30)
        weight = model[0].weight.detach().clone()
        train_interrupted(model, optimizer)
        with pytest.warns(UserWarning, match="step had not ended"):
            ck.save(step + 1)
        assert ck.restore() == step and torch.equal(model[0].weight, weight)
        assert ck.save(step + 1).dropped_because != "REFUSED"
