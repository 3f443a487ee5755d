"""A job that starts afresh without restore(): the ranks that are there train, those that are missing hold nobody up."""

import os
import pathlib
import subprocess
import sys
import time
import warnings

import ckptd
import torch
from torch import nn

HERE = pathlib.Path(__file__).parent
LONGEST = 1.0  # seconds that a step may take because of ckptd, on a busy machine


def rank(number):
    model = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    state = {"m": model, "o": optimizer}
    checkpointer = ckptd.Checkpointer(state, job="j", rank=number, world_size=2, every=1, restart=True)
    return checkpointer, model, optimizer


def train(checkpointer, model, optimizer, step):
    """One step. What it saved, and how long ckptd held it up."""
    optimizer.zero_grad()
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    began = time.monotonic()
    save = checkpointer.step(step)
    return save, time.monotonic() - began


def captured(saves):
    try:
        return all(save.captured(5) for save in saves)
    except ckptd.SaveError:  # its memory is being prepared
        return False


def test_a_missing_rank_holds_no_step_up_and_is_told_once(agent):
    first, step, slowest, save = rank(0), 0, 0.0, None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        until = time.monotonic() + 20
        while save is None or save.dropped_because != "RANKS_MISSING" or first[0].dropped["RANKS_MISSING"] < 20:
            assert time.monotonic() < until and slowest < LONGEST, (save, slowest)
            step += 1
            save, seconds = train(*first, step)
            slowest = max(slowest, seconds)
            time.sleep(0.01)
    told = [str(one.message) for one in caught if "RANKS_MISSING" in str(one.message)]
    assert len(told) == 1 and "for the other ranks, of 2 in all" in told[0], told
    assert "Next step: start the ranks named above" in told[0]
    second, until = rank(1), time.monotonic() + 30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while not captured([train(*each, step + 1)[0] for each in (first, second)]):
            assert time.monotonic() < until, (first[0].dropped, second[0].dropped)
            step += 1
    for each in (first, second):
        each[0].close(0)


def test_it_starts_afresh_although_snapshots_exist(agent):
    model, optimizer = nn.Linear(4, 4), None
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for restart in (False, True):
        checkpointer = ckptd.Checkpointer({"m": model, "o": optimizer}, job="k", every=1, restart=restart)
        step, until = 0, time.monotonic() + 30
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save = None
            while save is None or not captured([save]):
                assert time.monotonic() < until, checkpointer.dropped
                step += 1
                save, _ = train(checkpointer, model, optimizer, step)
        assert save.durable(30) and checkpointer.close()


def give_room_for_two_slots(agent):
    agent.kill()
    agent.config.write_text(agent.config.read_text().replace("[region]\n", '[region]\nsize = "40 MiB"\n'))
    agent.lose_region()
    agent.start()


def end_with_a_save(checkpointer, step):
    """On from `step` until a save is durable."""
    until, save = time.monotonic() + 20, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while save is None or not captured([save]):
            assert time.monotonic() < until, checkpointer.dropped
            step += 1
            save = checkpointer.step(step)
    assert save.durable(30) and checkpointer.close()


def grow(start_from):
    """A process that goes on from there with a longer text, until a save of it is durable."""
    weights, log = torch.ones(4 << 20), {"text": "x" * 20_000}
    checkpointer = ckptd.Checkpointer({"weights": [weights], "log": log}, job="grows", every=1)
    step = checkpointer.restore()
    assert (step > 0) == start_from
    log["text"] += "x" * 3000
    end_with_a_save(checkpointer, step)


def test_a_text_that_has_grown_keeps_the_memory_of_what_was_restored(agent):
    """In a region that has room for two slots, and not for those of another layout."""
    give_room_for_two_slots(agent)
    for start_from in (False, True, True):
        line = f"import test_restart; test_restart.grow({start_from})"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
        subprocess.run([sys.executable, "-c", line], env=environment, check=True, timeout=120)


def test_one_after_the_other_in_one_process_has_the_memory_of_the_one_before(agent):
    """In a region that has room for two slots: one that stayed the first one's would be missed by all others."""
    give_room_for_two_slots(agent)
    weights, steps = torch.ones(4 << 20), []
    for _ in range(6):
        checkpointer = ckptd.Checkpointer({"weights": [weights]}, job="again", every=1)
        steps.append(checkpointer.restore())
        end_with_a_save(checkpointer, steps[-1])
    assert steps[0] == 0 and steps == sorted(set(steps))
