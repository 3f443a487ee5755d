"""What who waits for a save may expect: the timeout that was given, and that asking costs nothing."""

import os
import signal
import threading
import time

import ckptd
import pytest
import torch
from ckptd import _lib
from ckptd.torch._link import Deadline, Link
from test_checkpointer import train, trainee, until_ready

BYTES = 64 << 20  # takes longer to copy than this gate waits
GATE = 0.001


def test_a_wait_obeys_its_own_timeout_and_gives_nothing_up(agent):
    held = {"x": ckptd.lazy(torch.zeros(BYTES // 4))}
    checkpointer = ckptd.Checkpointer(held, job="w", gate_timeout=GATE, selfcheck="off", on_error="raise")
    checkpointer.restore()
    step, waited = until_ready(checkpointer, 1), False
    while not waited:  # unless this process is preempted until all is copied
        assert step < 20
        save, began = checkpointer.save(step), time.monotonic()
        waited = not save.captured(0)
        assert time.monotonic() - began < 1
        assert save.captured(30) and save.durable(30), "the capture went on"
        step += 1
    assert not checkpointer.dropped and checkpointer.close()


def test_a_wait_is_no_gate_of_the_next_save(agent):
    model, optimizer = trainee()
    checkpointer = ckptd.Checkpointer({"m": model, "o": optimizer}, job="w", selfcheck="off", on_error="raise")
    checkpointer.restore()
    train(model, optimizer)
    step = until_ready(checkpointer, 1)
    for each in (step, step + 1):  # nobody updates, and so no gate is passed
        assert checkpointer.save(each).captured(30)
    assert checkpointer.close()


@pytest.fixture
def waiting(agent):
    """(checkpointer, a save that nobody captures, protects or writes any more)."""
    model, optimizer = trainee()
    checkpointer = ckptd.Checkpointer({"m": model, "o": optimizer}, job="w", selfcheck="off", on_error="raise")
    checkpointer.restore()
    train(model, optimizer)
    step = until_ready(checkpointer, 1)
    agent.process.send_signal(signal.SIGSTOP)
    yield checkpointer, checkpointer.save(step)
    checkpointer.close(0)


def soon(function):
    """Calls it in another thread while the caller waits."""
    later = threading.Timer(0.3, function)
    later.start()
    return later


@pytest.fixture
def handler():
    """Sets what SIGINT does until the test is over."""
    before = signal.getsignal(signal.SIGINT)
    yield lambda function: signal.signal(signal.SIGINT, function)
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "wait",
    [lambda ck, save: save.captured(9), lambda ck, save: save.protected(9), lambda ck, save: save.durable(9),
     lambda ck, save: ck.close(9)],
    ids=["captured", "protected", "durable", "close"],
)  # fmt: skip
def test_a_wait_ends_by_a_signal(waiting, handler, wait):
    checkpointer, save = waiting
    handler(signal.default_int_handler)
    sent = soon(lambda: os.kill(os.getpid(), signal.SIGINT))
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait(checkpointer, save)
    assert time.monotonic() - began < 0.3 + 1
    sent.join()
    assert save.state == "capturing" and checkpointer.alive and not save.captured(0)


def test_a_wait_goes_on_behind_a_handler_that_returns(waiting, handler):
    heard = []
    handler(lambda *_: heard.append(time.monotonic()))
    sent, began = soon(lambda: os.kill(os.getpid(), signal.SIGINT)), time.monotonic()
    assert not waiting[1].durable(1.5)
    assert 1.5 <= time.monotonic() - began < 3 and heard and heard[0] - began < 0.3 + 1
    sent.join()


@pytest.mark.parametrize("closes", ["a thread", "a handler of this one"])
def test_a_wait_ends_when_the_checkpointer_is_closed(waiting, handler, closes):
    checkpointer, save = waiting
    handler(lambda *_: checkpointer.close(0))
    sent = soon((lambda: checkpointer.close(0)) if closes == "a thread" else lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(ckptd.SaveError) as caught:
        save.durable(20)
    assert caught.value.code == "CANCELLED" and not checkpointer.alive
    sent.join()


def test_a_close_waits_for_what_becomes_durable_meanwhile(waiting, agent):
    checkpointer, save = waiting
    later, began = soon(lambda: agent.process.send_signal(signal.SIGCONT)), time.monotonic()
    assert checkpointer.close(30) and time.monotonic() - began >= 0.3
    later.join()


def test_a_close_is_over_at_its_timeout(waiting):
    began = time.monotonic()
    assert not waiting[0].close(0.5) and 0.5 <= time.monotonic() - began < 3
    assert not waiting[0].alive


def test_an_exception_inside_with_is_not_held_up(waiting, monkeypatch):
    monkeypatch.setattr("ckptd.checkpointer._CLOSE_TIMEOUT", 20)
    checkpointer, save = waiting
    began = time.monotonic()
    with pytest.raises(ZeroDivisionError), checkpointer:
        raise ZeroDivisionError
    assert time.monotonic() - began < 5 and not checkpointer.alive


def test_a_capture_is_finished_behind_an_exception(agent):
    held = {"x": ckptd.lazy(torch.ones(BYTES // 4))}
    checkpointer = ckptd.Checkpointer(held, job="w", selfcheck="off", on_error="raise")
    checkpointer.restore()
    step = until_ready(checkpointer, 1)
    with pytest.raises(ZeroDivisionError), checkpointer:
        checkpointer.save(step)
        raise ZeroDivisionError
    again = {"x": ckptd.lazy(torch.zeros(BYTES // 4))}
    with ckptd.Checkpointer(again, job="w", on_error="raise") as checkpointer:
        assert checkpointer.restore() == step and torch.equal(again["x"], held["x"])


def test_a_capture_that_is_given_up_behind_an_exception_is_told(waiting, monkeypatch):
    checkpointer, _ = waiting
    monkeypatch.setattr(checkpointer._session, "gate", lambda: -1)
    monkeypatch.setattr(_lib, "sentence", lambda: "step 7: the capture was not done")
    with pytest.warns(UserWarning, match="ckptd: step 7: the capture was not done"), pytest.raises(ZeroDivisionError):
        with checkpointer:
            raise ZeroDivisionError


def test_dcp_does_not_wait_for_memory_that_will_not_come(agent, monkeypatch):
    link = Link("w", 0, 1, None)
    info = _lib.InfoView(broken=1, last_code=-34, last_sentence=b"thread ckpt-session of libckpt ended")
    monkeypatch.setattr(link._session, "info", lambda: info)
    began = time.monotonic()
    with pytest.raises(ckptd.SaveError, match="thread ckpt-session of libckpt ended"):
        link._await_memory(1, Deadline(20))
    assert time.monotonic() - began < 10
    assert link.close(10)
