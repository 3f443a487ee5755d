"""Ctrl-C, and handlers of other signals, while restore() waits for the other ranks."""

import os
import signal
import threading
import time

import ckptd
import pytest
import torch
from torch import nn

SOON = 5.0  # seconds within which a signal is handled, on a busy machine; the restore itself would wait for 60


def rank(number):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return ckptd.Checkpointer({"m": model, "o": optimizer}, job="j", rank=number, world_size=2, every=1)


def signalled(number, after=1.0):
    """Sends it to this process; join it before the handler is taken back."""
    timer = threading.Timer(after, os.kill, (os.getpid(), number))
    timer.start()
    return timer


def test_ctrl_c_ends_a_restore_that_waits_and_the_next_one_works(agent):
    first, began = rank(0), time.monotonic()
    timer = signalled(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        first.restore(timeout=60)
    timer.join()
    assert 0.9 < time.monotonic() - began < SOON
    with rank(1) as second:
        other = threading.Thread(target=second.restore)
        other.start()
        assert first.restore() == 0
        other.join()
        first.close()


def test_a_handler_may_close_the_checkpointer_and_raise(agent):
    first, began = rank(0), time.monotonic()

    def stop(*_):
        first.close()
        raise SystemExit(3)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        timer = signalled(signal.SIGTERM)
        with pytest.raises(SystemExit):
            first.restore(timeout=60)
        timer.join()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert time.monotonic() - began < SOON and not first.alive


def test_a_handler_that_only_closes_ends_it_as_cancelled(agent):
    first, began = rank(0), time.monotonic()
    before = signal.signal(signal.SIGUSR1, lambda *_: first.close())
    try:
        timer = signalled(signal.SIGUSR1)
        with pytest.raises(ckptd.RestoreError, match="ended from outside"):
            first.restore(timeout=60)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - began < SOON


def test_a_handler_that_returns_changes_nothing(agent):
    first, seen = rank(0), []
    before = signal.signal(signal.SIGUSR1, lambda *_: seen.append(time.monotonic()))
    began = time.monotonic()
    try:
        timer = signalled(signal.SIGUSR1, 0.5)
        with pytest.raises(ckptd.RestoreError, match="ranks 1 did not call"):
            first.restore(timeout=3)
        timer.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 1 and seen[0] - began < 2.5
    first.close()
