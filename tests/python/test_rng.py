"""Generators of CUDA devices, of which this machine has none: torch's functions are replaced."""

import warnings

import pytest
import torch
from ckptd import extra, rng


class Gpus:
    """What torch.cuda says of `count` devices, and the states they have by now."""

    def __init__(self, monkeypatch, count, current=0, initialized=True):
        self.states = {index: bytes([index]) for index in range(count)}
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialized)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: current if initialized else pytest.fail("asked"))
        monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: list(map(rng.tensor_of, self.states.values())))
        monkeypatch.setattr(torch.cuda, "set_rng_state", self._set)

    def _set(self, state, device):
        assert device in self.states, f"there is no device {device}"
        self.states[device] = rng.tensor_bytes(state)

    def restored(self, saved):
        """The states after a restore, and the notes of it."""
        self.states = dict.fromkeys(self.states, b"")
        notes = rng.apply(saved)
        return [self.states[index] for index in sorted(self.states)], notes


def saved(monkeypatch, count, current):
    Gpus(monkeypatch, count, current)
    return extra.loads(extra.dumps(rng.capture()))


@pytest.mark.parametrize("current", [0, 3])
def test_the_same_devices(monkeypatch, current):
    states = saved(monkeypatch, 4, current)
    assert Gpus(monkeypatch, 4, current).restored(states) == ([b"\0", b"\1", b"\2", b"\3"], [])


def test_fewer_devices_here(monkeypatch):
    states = saved(monkeypatch, 8, current=5)
    found, notes = Gpus(monkeypatch, 2, current=0).restored(states)
    assert found == [b"\5", b"\1"], "the one in use, and the others by their number"
    assert notes == ["generators of 8 CUDA devices were saved, this process sees 2: those of the others are not restored"]


def test_a_device_of_its_own_here_and_there(monkeypatch):
    states = saved(monkeypatch, 1, current=0)
    assert Gpus(monkeypatch, 4, current=2).restored(states) == ([b"\0", b"", b"\0", b""], [])


def test_another_of_as_many_devices(monkeypatch):
    states = saved(monkeypatch, 4, current=1)
    found, notes = Gpus(monkeypatch, 4, current=3).restored(states)
    assert found == [b"\0", b"\1", b"\2", b"\1"] and notes == []


def test_a_process_that_has_not_used_its_device_yet(monkeypatch):
    states = saved(monkeypatch, 2, current=1)
    gpus = Gpus(monkeypatch, 1, initialized=False)
    found, notes = gpus.restored(states)
    assert found == [b"\1"] and len(notes) == 1


def test_no_device_here_is_told(monkeypatch):
    states = saved(monkeypatch, 2, current=1)
    with pytest.warns(RuntimeWarning, match="ckptd: generators of 2 CUDA devices were saved, this process sees 0"):
        found, notes = Gpus(monkeypatch, 0).restored(states)
    assert found == [] and len(notes) == 1


def older(monkeypatch, count):
    """As it was saved before the device in use was."""
    states = saved(monkeypatch, count, current=0)
    del states["cuda_current"]
    return states


def test_an_older_checkpoint_of_as_many_devices(monkeypatch):
    states = older(monkeypatch, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Gpus(monkeypatch, 2, current=1).restored(states) == ([b"\0", b"\1"], [])


def test_an_older_checkpoint_without_the_device_in_use(monkeypatch):
    states = older(monkeypatch, 2)
    with pytest.warns(RuntimeWarning, match="were saved, this process sees 4; that of the device in use is not rest"):
        found, notes = Gpus(monkeypatch, 4, current=3).restored(states)
    assert found == [b"\0", b"\1", b"", b""] and len(notes) == 1


def test_nothing_of_cuda_was_saved(monkeypatch):
    Gpus(monkeypatch, 2, initialized=False)
    states = rng.capture()
    assert "cuda" not in states and "cuda_current" not in states
    assert Gpus(monkeypatch, 2).restored(states) == ([b"", b""], [])
