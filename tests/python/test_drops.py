"""How often the user hears of saves that were dropped."""

import warnings

import pytest
from ckptd import _lib, drops
from double import make, train, trainee  # noqa: F401

MINUTE, HOUR = 60.0, 3600.0


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.mark.parametrize("reason, pause", [("TORN", MINUTE), ("AGENT_UNREACHABLE", HOUR)])
def test_the_first_and_then_one_in_a_while_with_the_number_of_the_others(reason, pause):
    clock = Clock()
    told = drops.Drops(clock)
    assert "(the first; " in told.note(reason, "why")
    for clock.now in (1000.0, 1000.0 + pause / 2, 999.0 + pause):
        assert told.note(reason, "why") is None
    clock.now = 1000.0 + pause
    assert f"{reason}: why (5 times by now, 3 of them not told; " in told.note(reason, "why")
    assert told.note(reason, "why") is None
    clock.now += 14 * 24 * HOUR
    assert "(7 times by now, 1 of them not told; " in told.note(reason, "why")
    assert "(the first; " in told.note("BELOW_FLOOR", "why")
    assert told.counts == {reason: 7, "BELOW_FLOOR": 1}


def torn(ck, double, step, model, optimizer):
    """One save that comes out torn, and what is said of it in the step behind."""
    double.fate[step] = (_lib.DROPPED, "TORN")
    double.torn_columns = [0]
    train(model, optimizer)
    ck.step(step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(model, optimizer)
        ck.step(step + 1)
    return [str(one.message) for one in caught]


def test_a_save_that_is_torn_weeks_later_is_told_again(make):  # noqa: F811
    model, optimizer = trainee()
    ck, double = make({"m": model, "o": optimizer}, every=1)
    clock = ck._drops._clock = Clock()
    (first,) = torn(ck, double, 1, model, optimizer)
    assert "TORN: step 1: the save was dropped: " in first and "(the first; " in first
    clock.now += 10
    assert torn(ck, double, 3, model, optimizer) == []
    clock.now += 14 * 24 * HOUR
    (again,) = torn(ck, double, 5, model, optimizer)
    assert "TORN: step 5: the save was dropped: " in again and "(3 times by now, 1 of them not told; " in again
    assert ck.dropped == {"TORN": 3}
