"""The save side in one process: what is told, what goes on, what it costs."""

import gc
import os
import time
import warnings
import weakref

import ckptd
import numpy as np
import pytest
import torch
from ckptd import _lib, selfcheck, session
from ckptd.identity import job_name, place
from ckptd.session import error
from ckptd.torch._link import Deadline, Link
from ckptd.torch._pieces import Pieces
from conftest import BUILD, require_build
from torch import nn


def library(monkeypatch, tmp_path):
    require_build()
    monkeypatch.setenv("CKPTD_LIB", str(BUILD / "lib" / "libckpt.so"))
    monkeypatch.setenv("CKPTD_SOCKET", str(tmp_path / "none.sock"))


def trainee(width=4):
    model = nn.Linear(width, width)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(model.in_features)).sum().backward()
    optimizer.step()


def until_ready(checkpointer, step):
    """Steps until the agent has prepared the layout's memory. Returns the next step."""
    deadline = time.monotonic() + 20
    checkpointer.step(step)
    while not checkpointer._session.info().ready:
        assert time.monotonic() < deadline, checkpointer._session.info().last_sentence
        time.sleep(0.005)
    return step + 1


def accepted(checkpointer, step):
    """A save of the first step from `step` on for which the agent has granted a slot; on a busy machine not at once."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            save = checkpointer.save(step)
            if save.state != "dropped":
                return save
        except ckptd.SaveError:
            pass
        step += 1
        time.sleep(0.01)
    raise AssertionError(checkpointer._session.info().last_sentence)


def test_no_agent_warns_once_and_trains_on(monkeypatch, tmp_path):
    library(monkeypatch, tmp_path)
    model, optimizer = trainee()
    checkpointer = ckptd.Checkpointer([model, optimizer], job="j", every=1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(1, 5):
            train(model, optimizer)
            save = checkpointer.step(step)
            assert save.state == "dropped" and save.dropped_because == "AGENT_UNREACHABLE"
    assert len(caught) == 1 and "start the agent" in str(save.error)
    assert checkpointer.dropped["AGENT_UNREACHABLE"] == 4
    with pytest.raises(ckptd.SaveError):
        save.captured(1)
    began = time.monotonic()
    with pytest.raises(ckptd.AgentUnreachable, match=r"none\.sock \(No such file or directory\).*systemctl status ckptd"):
        checkpointer.restore(connect_timeout=0.5)
    assert time.monotonic() - began < 30  # the 120 s are for the ranks, once an agent has answered
    assert not checkpointer.close(0.1)
    assert checkpointer.close()


def test_a_step_without_a_save_is_cheap(monkeypatch, tmp_path):
    library(monkeypatch, tmp_path)
    checkpointer = ckptd.Checkpointer(list(trainee()), job="j", every=10**9)
    checkpointer.step(1)
    best = min(timed(lambda: checkpointer.step(2)) for _ in range(200))
    assert best < 20e-6
    checkpointer.close(0)


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def test_a_forked_child_does_nothing(agent):
    model, optimizer = trainee()
    checkpointer = ckptd.Checkpointer([model, optimizer], job="j")
    assert checkpointer.restore() == 0
    child = os.fork()
    if child == 0:
        os._exit(0 if checkpointer.save(5).state == "dropped" and checkpointer.close() else 1)
    assert os.waitpid(child, 0)[1] == 0
    train(model, optimizer)
    step = until_ready(checkpointer, 1)
    assert checkpointer.save(step).durable(30)
    assert checkpointer.close()


def closed_is_told(function):
    with pytest.raises(ckptd.RestoreError, match="is closed, or this is a forked child; make a new one"):
        function()
    return True


def test_a_closed_checkpointer_restores_nothing(agent):
    checkpointer = ckptd.Checkpointer(list(trainee()), job="j")
    assert checkpointer.restore() == 0
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if closed_is_told(checkpointer.restore) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    checkpointer._begin_restore()
    assert checkpointer.close()
    closed_is_told(checkpointer._finish_restore)  # its second half alone
    closed_is_told(checkpointer.restore)
    assert not checkpointer._session._handle  # libckpt would refuse it as well


def test_a_closed_link_of_dcp_uses_no_handle(agent):
    closed = Link("j", 0, 1, None)
    deadline = Deadline(10)
    closed.join(_lib.WANT_NEWEST, 0, deadline, 10)
    assert closed.close(10) and not closed.alive
    closed_is_told(lambda: closed.read(np.zeros((0, 3), dtype=np.uint64)))
    closed_is_told(closed.settle)
    closed_is_told(lambda: closed.join(_lib.WANT_NEWEST, 0, deadline, 10))
    closed.pass_over(1, Pieces.nothing(0))


@pytest.fixture
def closed(monkeypatch, tmp_path):
    """Handles that were closed because nobody had their session any more. No agent answers."""
    library(monkeypatch, tmp_path)
    seen, close = [], session._close
    monkeypatch.setattr(session, "_close", lambda lib, handle, pid: (seen.append(handle), close(lib, handle, pid)))
    return seen


def handle_of_one_that_was_dropped(**options):
    checkpointer = ckptd.Checkpointer(list(trainee()), job="j", **options)
    handle, kept = checkpointer._session.handle, weakref.ref(checkpointer)
    del checkpointer
    gc.collect()
    return handle, kept


def test_who_drops_a_checkpointer_closes_it(closed):
    handle, gone = handle_of_one_that_was_dropped()
    assert closed == [handle] and gone() is None


def test_with_postmortem_it_stays_open_until_close(closed):
    _, kept = handle_of_one_that_was_dropped(postmortem=True)
    assert closed == [] and kept()._session.alive
    kept().close(0)
    gc.collect()
    assert kept() is None and closed == []


def test_with_postmortem_the_next_of_its_rank_closes_it(closed):
    _, kept = handle_of_one_that_was_dropped(postmortem=True)
    other = ckptd.Checkpointer(list(trainee()), job="k", postmortem=True)
    assert kept()._session.alive
    with pytest.warns(UserWarning, match="postmortem: .* job j, rank 0 is closed, because another one") as told:
        again = ckptd.Checkpointer(list(trainee()), job="j", postmortem=True)
    assert told[0].filename == __file__
    gc.collect()
    assert kept() is None and again._session.alive and other._session.alive
    again.close(0)
    other.close(0)


def test_one_that_cannot_be_made_closes_nothing(closed, monkeypatch):
    _, kept = handle_of_one_that_was_dropped(postmortem=True)
    with pytest.raises(ValueError):
        ckptd.Checkpointer(list(trainee()), job="j", lazy="all")
    monkeypatch.setattr(session, "PATHS", ("push", "elsewhere", "nowhere", "pull"))  # libckpt refuses the last
    with pytest.raises(ValueError, match="gpu_path 3"):
        ckptd.Checkpointer(list(trainee()), job="j", gpu_path="pull")
    assert kept()._session.alive
    kept().close(0)


def test_what_the_kept_one_was_capturing_is_finished(agent):
    held = {"x": ckptd.lazy(torch.zeros(16 << 20))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a capture after death without a GPU, and of the second one
        checkpointer = ckptd.Checkpointer(held, job="j", postmortem=True, selfcheck="off")
        checkpointer.restore()
        save = accepted(checkpointer, until_ready(checkpointer, 1))
        with ckptd.Checkpointer(held, job="j", on_error="raise") as again:
            assert again.restore() == save.step


@pytest.mark.parametrize("stays", [False, True])
def test_levels_and_exact_restore(agent, stays):
    model, optimizer = trainee()
    state = {"m": model, "o": optimizer}
    with ckptd.Checkpointer(state, job="j", on_error="raise", storages_stay=stays) as checkpointer:
        assert checkpointer.restore() == 0 and checkpointer.restored.source == "none"
        train(model, optimizer)
        save = accepted(checkpointer, until_ready(checkpointer, 1))
        step = save.step
        assert save.captured(30) and save.durable(30) and save.state == "durable"
        assert save.blocked_seconds < 1 and save.dropped_because is None and save.error is None
        first = model.weight.detach().clone()
        for _ in range(3):
            train(model, optimizer)
            save = accepted(checkpointer, step + 1)
            step = save.step
            assert save.durable(30)
    again, other = trainee()
    with ckptd.Checkpointer({"m": again, "o": other}, job="j", on_error="raise") as checkpointer:
        assert checkpointer.restore() == step
        assert torch.equal(again.weight, model.weight)
        assert torch.equal(other.state[again.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    with ckptd.Checkpointer({"m": again, "o": other}, job="j") as checkpointer:
        with pytest.raises(ckptd.NotFound):
            checkpointer.restore(step=step + 7)
    assert not torch.equal(first, again.weight)


def test_what_was_passed_over_says_why(agent):
    model, optimizer = trainee()
    with ckptd.Checkpointer({"m": model, "o": optimizer}, job="j", on_error="raise") as checkpointer:
        checkpointer.restore()
        train(model, optimizer)
        older = accepted(checkpointer, until_ready(checkpointer, 1))
        assert older.durable(30)
        train(model, optimizer)
        newer = accepted(checkpointer, older.step + 1)
        assert newer.durable(30)
    with ckptd.Checkpointer({"m": model, "o": optimizer}, job="j", on_error="raise") as checkpointer:
        assert checkpointer.restore(step=older.step) == older.step
        why = f"step {newer.step} of attempt 1: REFUSED: step {older.step} was asked for"
        assert checkpointer.restored.skipped == [why]


def test_another_layout_is_refused_by_name(agent):
    model, optimizer = trainee()
    with ckptd.Checkpointer({"m": model, "o": optimizer}, job="j") as checkpointer:
        checkpointer.restore()
        train(model, optimizer)
        assert accepted(checkpointer, until_ready(checkpointer, 1)).durable(30)
    wider, optimizer = trainee(5)
    with ckptd.Checkpointer({"m": wider, "o": optimizer}, job="j") as checkpointer:
        with pytest.raises(ckptd.LayoutMismatch, match=r"m.weight: F32 \[5, 5\] here, F32 \[4, 4\] in the checkpoint"):
            checkpointer.restore()


def test_writes_without_a_gate_are_caught_named_and_made_eager(agent):
    model, optimizer = trainee(256)
    checkpointer = ckptd.Checkpointer({"m": model, "o": optimizer}, job="j", selfcheck="always")
    checkpointer.restore()
    train(model, optimizer)
    first = until_ready(checkpointer, 1)
    torn = None
    for step in range(first, first + 50):
        save = checkpointer.save(step)
        with torch.no_grad():
            model.weight.add_(1)  # not an optimizer's step: nothing waits
        train(model, optimizer)
        if not save_is_good(save):
            torn = save
            break
        assert save.durable(30)  # so that no save is dropped for want of a slot
    assert torn is not None and torn.dropped_because == "TORN"
    with pytest.warns(UserWarning, match="m.weight changed"):
        checkpointer.step(step + 1)
    assert "m.weight" in checkpointer._state.forced_eager
    checkpointer.close()


def saved_then_written(checkpointer, step, model):
    """The save, and what it must hold; the weights are changed right behind it, and nothing waits."""
    weight, save = model.weight.detach().clone(), checkpointer.save(step)
    with torch.no_grad():
        model.weight.add_(1)
    return save, weight


def test_a_loop_that_only_saves_is_torn_once_and_whole_from_then_on(agent):
    model, optimizer = trainee(256)
    state = {"m": model, "o": optimizer}
    checkpointer = ckptd.Checkpointer(state, job="j", selfcheck="always")
    checkpointer.restore()
    train(model, optimizer)
    step, torn = until_ready(checkpointer, 1), False
    while not torn:
        assert step < 50, "each copy came before the write"
        save, _ = saved_then_written(checkpointer, step, model)
        train(model, optimizer)
        torn, step = not save_is_good(save, "durable") and save.dropped_because == "TORN", step + 1
    with pytest.warns(UserWarning, match="m.weight changed"):
        save = checkpointer.save(step)
    save_is_good(save, "durable")  # or its memory is being prepared
    step = until_ready(checkpointer, step + 1)
    save, weight = saved_then_written(checkpointer, step, model)
    train(model, optimizer)
    assert save.durable(30) and checkpointer.dropped["TORN"] == 1
    checkpointer.close()
    with ckptd.Checkpointer(state, job="j", on_error="raise") as again:
        assert again.restore() == step and torch.equal(model.weight, weight)


def save_is_good(save, level="captured"):
    try:
        return getattr(save, level)(30)
    except ckptd.SaveError:
        return False


def test_moves_do_not_lose_the_next_save(agent):
    model, optimizer = trainee()
    checkpointer = ckptd.Checkpointer({"m": model, "o": optimizer}, job="j", on_error="raise")
    checkpointer.restore()
    train(model, optimizer)
    step = until_ready(checkpointer, 1)
    model.weight.data = model.weight.data.clone()  # the same layout elsewhere
    assert checkpointer.save(step).captured(30)
    checkpointer.release()
    assert checkpointer.save(step + 1).captured(30)
    assert checkpointer.close()


def test_job_and_rank(monkeypatch):
    for name in ("CKPTD_JOB", "RANK", "WORLD_SIZE", "SLURM_PROCID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="CKPTD_JOB"):
        job_name(None)
    for bad in ("a/b", "", "x" * 129, "..", "ä"):
        with pytest.raises(ValueError):
            job_name(bad)
    monkeypatch.setenv("CKPTD_JOB", "gpt-1.b_c")
    assert job_name(None) == "gpt-1.b_c"
    assert place(None, None)[:2] == (0, 1)
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert place(None, None)[:2] == (1, 2)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert place(None, None)[:2] == (3, 4)
    with pytest.raises(ValueError, match="argument says 2 of 4, RANK says 3 of 4"):
        place(2, 4)
    with pytest.raises(ValueError, match="both"):
        place(1, None)


def test_selfcheck_policy():
    with pytest.raises(ValueError):
        selfcheck.SelfCheck("sometimes")
    check, due = selfcheck.SelfCheck("first"), []
    for _ in range(250):
        due.append(check.due())
        check.started()
    assert [i for i, x in enumerate(due) if x] == [0, 100, 200]
    check.new_layout()
    assert check.due() and not selfcheck.SelfCheck("off").due()


def test_what_the_storage_does_to_a_restore_is_a_restore_error(monkeypatch, tmp_path):
    library(monkeypatch, tmp_path)
    hung = -15
    assert type(error(hung)) is ckptd.SaveError
    told = error(hung, ckptd.RestoreError)
    assert type(told) is ckptd.RestoreError and told.code == "STORAGE_HUNG" and "Next step: the storage" in str(told)
