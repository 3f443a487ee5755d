"""What who waits for a save may expect: the timeout that was given, and that asking costs nothing."""

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


def test_dcp_does_not_wait_for_memory_that_will_not_come(agent, monkeypatch):
    link = Link("w", 0, 1, None)
    info = _lib.InfoView(broken=1, last_code=-34, last_sentence=b"thread ckpt-session of libckpt ended")
    monkeypatch.setattr(link._session, "info", lambda: info)
    began = time.monotonic()
    with pytest.raises(ckptd.SaveError, match="thread ckpt-session of libckpt ended"):
        link._await_memory(1, Deadline(20))
    assert time.monotonic() - began < 10
    assert link.close(10)
