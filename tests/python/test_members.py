"""Ranks that contradict each other, and a job that comes back with another number of ranks: refused, nothing lost.

Real processes and a real agent; the processes are forked from a warm one, since importing torch takes longer than all.
"""

import multiprocessing
import os
import time

import pytest

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["torch", "ckptd"])
SAVES = 50


def member(pipe, barrier, done, environment, steps, timeout):
    """One rank: restores, saves until `steps` more were captured, tells what happened when all have come so far."""
    os.environ.update(environment)
    try:
        pipe.send(live(barrier, done, steps, timeout))
    except Exception as error:
        done.wait(60)
        pipe.send(f"{type(error).__name__}: {error}")


def live(barrier, done, steps, timeout):
    import ckptd
    import torch

    torch.set_num_threads(1)
    held = {"x": torch.zeros(100), "n": 0}
    checkpointer = ckptd.Checkpointer({"held": held}, job="members", every=1)
    start = checkpointer.restore(timeout=timeout)
    assert held["n"] == start and bool((held["x"] == start).all()), "not what was saved"
    captured = n = start
    while captured < start + steps and n < start + SAVES:
        n += 1
        barrier.wait(20)  # as the collectives of a real step
        held["x"].fill_(n)
        held["n"] = n
        captured = max(captured, n if was_captured(checkpointer.step(n)) else 0)
        time.sleep(0.02)  # a step takes its time: the layout is prepared meanwhile, also on a busy machine
    done.wait(60)
    checkpointer.close(30)
    return start, captured


def was_captured(save):
    import ckptd

    try:
        return save.captured(1)
    except ckptd.SaveError:  # no memory for the layout yet, here or on another rank
        return False


def run(agent, places, steps=1, timeout=20, **more):
    """What each of (rank, world size) told, in that order."""
    pipes, barrier, done = [], CONTEXT.Barrier(len(set(places))), CONTEXT.Barrier(len(places))
    for rank, world in places:
        here, there = CONTEXT.Pipe(False)
        environment = agent.environment(**(more or {"RANK": str(rank), "WORLD_SIZE": str(world)}))
        process = CONTEXT.Process(target=member, args=(there, barrier, done, environment, steps, timeout))
        process.start()
        pipes.append((here, process))
        there.close()
    told = [here.recv() if here.poll(100) else "it hangs" for here, _ in pipes]
    for _, process in pipes:
        process.join(20)
        process.kill()
    return told


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Warnings about saves that wait for memory are not what these tests look at."""
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")


def four(agent):
    return run(agent, [(rank, 4) for rank in range(4)], steps=2)


def test_another_world_size_is_refused_and_the_old_one_goes_on(agent):
    assert {start for start, _ in four(agent)} == {0}
    for told in run(agent, [(0, 2), (1, 2)]):
        assert told.startswith("LayoutMismatch: job members: step ")
        assert "was saved with world size 4, restore() was called with 2" in told
        assert "Next step: restore with the model and world size that were saved, or start afresh" in told
    again = four(agent)
    assert len({start for start, _ in again}) == 1 and again[0][0] >= 2


def test_ranks_that_say_different_world_sizes(agent):
    """After ranks of another world size that came to nothing, too: the agent must not measure one by the other."""
    assert all(isinstance(told, tuple) for told in four(agent))
    for places in ([(0, 2)], [(2, 4), (3, 4)], [(0, 4), (1, 2), (2, 4), (3, 4)]):
        refused = run(agent, places, timeout=1)
        assert all(told.startswith("RestoreError") for told in refused), refused
        assert agent.process.poll() is None, agent.log()
    assert any("rank 1 says world size 2, rank 0 says 4. Next step: give every rank" in told for told in refused)
    again = four(agent)
    assert len({start for start, _ in again}) == 1 and again[0][0] >= 2


def test_two_processes_that_say_they_are_the_same_rank(agent):
    told = run(agent, [(0, 2), (0, 2)], timeout=1)
    assert any("rank 0 is held by the live process" in one and "stop it, or use another" in one for one in told)
    assert any("ranks 1 did not call restore()" in one for one in told)
    told = run(agent, [(0, 2), (1, 2), (1, 2)], timeout=8)
    assert sum("rank 1 is held by the live process" in str(one) for one in told) == 1, told
    assert sum(isinstance(one, tuple) for one in told) == 2, told


def test_slurm_step_of_another_size_than_the_allocation(agent):
    alone = {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"}
    assert run(agent, [(0, 1)], **alone)[0][0] == 0
