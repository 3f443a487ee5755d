"""A run that was killed ends as one that was not: every tensor, loss and batch, bit for bit.

Started as users do it, by hand and by torchrun; and forked from a warm process where the start is not what is tested,
since it takes longer than all of the run.
"""

import multiprocessing.connection
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import warnings

import ckptd
import pytest
import torch
import torch.distributed.checkpoint as dcp
import train_loop
from conftest import ROOT
from warm import importable

LOOP = ROOT / "tests" / "python" / "train_loop.py"


CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["train_loop"])


def launched(out, *arguments, environment, ranks=1):
    """Exit status of one launch from a command line; of several ranks, that of torchrun, which restarts them once."""
    out.mkdir(exist_ok=True)
    command = [sys.executable]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=1"]
    command += [str(LOOP), "--out", str(out), *arguments]
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        return process.wait(240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def run(out, *arguments, environment):
    """Exit status of one process, forked."""
    return together(out, [environment], *arguments)[0]


def together(out, environments, *arguments):
    """Exit statuses of forked processes side by side, ended by the first that fails, as srun --kill-on-bad-exit does."""
    out.mkdir(exist_ok=True)
    ranks = [CONTEXT.Process(target=train_loop.forked, args=(out, arguments, each)) for each in environments]
    with importable():
        for rank in ranks:
            rank.start()
    try:
        deadline = time.monotonic() + 120
        while any(rank.is_alive() for rank in ranks) and time.monotonic() < deadline:
            if any(rank.exitcode for rank in ranks):
                break
            multiprocessing.connection.wait([rank.sentinel for rank in ranks if rank.is_alive()], 1)
    finally:
        for rank in ranks:
            rank.kill()
            rank.join(30)
    return [rank.exitcode for rank in ranks]


def result(out, ranks):
    """Final digests, and the last loss written for each step."""
    finals = [(out / f"final.{rank}").read_text() for rank in range(ranks)]
    losses = [dict(line.split() for line in (out / f"loss.{rank}").read_text().splitlines()) for rank in range(ranks)]
    return finals, losses


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Result of a run without ckptd, for (ranks, more arguments); made once each."""
    made = {}

    def get(ranks, *more):
        if (ranks, more) not in made:
            out = tmp_path_factory.mktemp("undisturbed")
            places = [{**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks)} for rank in range(ranks)]
            assert together(out, places, f"--meet=file://{out}/meeting", *more) == [0] * ranks
            made[ranks, more] = result(out, ranks)
        return made[ranks, more]

    return get


def restored(out, rank=0):
    return [line.split() for line in (out / f"restored.{rank}").read_text().splitlines()]


@pytest.mark.parametrize("start, workers", [(launched, 0), (run, 2)])
def test_killed_trainer_goes_on_from_memory(agent, tmp_path, undisturbed, start, workers):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=14", f"--workers={workers}")
    assert start(out, *arguments, environment=agent.environment()) == -signal.SIGKILL
    assert start(out, *arguments, environment=agent.environment()) == 0
    assert restored(out) == [["0", "none"], ["12", "region"]]
    assert result(out, 1) == undisturbed(1, f"--workers={workers}")


def test_killed_in_the_middle_of_a_capture(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=12", "--wait=none")
    assert run(out, *arguments, environment=agent.environment()) == -signal.SIGKILL
    assert run(out, *arguments, environment=agent.environment()) == 0
    assert restored(out)[1][0] in ("6", "9", "12")
    assert result(out, 1) == undisturbed(1, "--workers=0")


def test_agent_killed_while_training(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    assert run(out, "--save", "--die-at=14", environment=agent.environment()) == -signal.SIGKILL
    agent.kill()
    agent.start()
    assert run(out, "--save", "--die-at=14", environment=agent.environment()) == 0
    assert restored(out)[1] == ["12", "region"]
    assert result(out, 1) == undisturbed(1, "--workers=0")


def test_region_gone_as_after_a_reboot(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=14", "--wait=durable")
    assert run(out, *arguments, environment=agent.environment()) == -signal.SIGKILL
    agent.kill()
    agent.lose_region()
    agent.start()
    assert run(out, *arguments, environment=agent.environment()) == 0
    assert restored(out)[1] == ["12", "storage"]
    assert result(out, 1) == undisturbed(1, "--workers=0")


def test_two_ranks_under_torchrun(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=14", "--die-rank=1")
    assert launched(out, *arguments, ranks=2, environment=agent.environment()) == 0
    for rank in range(2):
        assert [source for _, source in restored(out, rank)] == ["none", "region"]
    assert restored(out, 0) == restored(out, 1)
    assert result(out, 2) == undisturbed(2)


def test_two_ranks_of_fsdp_killed_inside_a_capture(agent, tmp_path, undisturbed):
    """Under torchrun, which then starts all workers again; what is on storage at the end is read by stock torch."""
    out = tmp_path / "out"
    arguments = ("--save", "--every=4", "--fsdp", "--die-at=12", "--die-rank=1", "--wait=none")
    assert launched(out, *arguments, ranks=2, environment=agent.environment()) == 0
    assert restored(out, 0) == restored(out, 1) and len(restored(out)) == 2
    assert result(out, 2) == undisturbed(2, "--fsdp")
    assert_stock_torch_reads(sorted((agent.storage / "loop").glob("step-*20.*"))[-1], torch.load(out / "whole.pt"))


def assert_stock_torch_reads(folder, expected):
    """Shards of all ranks put together by torch alone."""
    found = {name: torch.zeros_like(value) for name, value in expected.items()}
    dcp.load(found, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert len(found) > 10 and [name for name in found if not torch.equal(found[name], expected[name])] == []


def test_slurm_step(agent, tmp_path, undisturbed):
    """srun -n 2 in an allocation of eight tasks: two processes, no launcher, killed by the first that fails."""
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=14", "--die-rank=1")
    ranks = [agent.environment(SLURM_PROCID=str(r), SLURM_STEP_NUM_TASKS="2", SLURM_NTASKS="8") for r in range(2)]
    assert together(out, ranks, f"--meet=file://{tmp_path}/first", *arguments)[1] == -signal.SIGKILL
    assert together(out, ranks, f"--meet=file://{tmp_path}/second", *arguments) == [0, 0]
    assert [restored(out, rank) for rank in range(2)] == [[["0", "none"], ["12", "region"]]] * 2
    assert result(out, 2) == undisturbed(2)


def test_two_nodes_of_torchrun(agent, tmp_path, undisturbed):
    """One node's worker dies; its torchrun starts it again, and the other node's joins the new rendezvous."""
    out = tmp_path / "out"
    out.mkdir()
    node = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-id=x"]
    node += ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--local-addr=127.0.0.1"]
    command = [sys.executable, *node, str(LOOP), "--out", str(out), "--save", "--die-at=14", "--die-rank=1"]
    nodes = [subprocess.Popen(command, env=agent.environment(), start_new_session=True) for _ in range(2)]
    try:
        assert [process.wait(200) for process in nodes] == [0, 0]
    finally:
        for process in nodes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    assert restored(out, 0) == restored(out, 1) and len(restored(out)) >= 2
    assert result(out, 2) == undisturbed(2)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_no_agent_at_restore(tmp_path):
    out = pathlib.Path(tmp_path / "out")
    missing = {**os.environ, "CKPTD_SOCKET": str(tmp_path / "none.sock"), "PYTHONPATH": f"{ROOT}/client/python"}
    assert run(out, "--save", "--connect-timeout", "1", environment=missing) == 1
    assert not (out / "final.0").exists()


def test_an_agent_that_comes_back_without_its_region_serves_the_trainers_that_live(agent):
    """As another pod with an empty tmpfs: the attempt that it coordinates is on the storage alone."""
    weights = torch.ones(1000)
    checkpointer = ckptd.Checkpointer({"weights": [weights]}, job="pod", every=1)
    step = captured_after(checkpointer, checkpointer.restore())
    agent.kill()
    agent.lose_region()
    agent.start()
    assert captured_after(checkpointer, step) > step
    assert checkpointer.close()


def captured_after(checkpointer, step):
    """Steps on until one is captured; that one."""
    until = time.monotonic() + 30
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        while time.monotonic() < until:
            step += 1
            save = checkpointer.step(step)
            if save.dropped_because is None and save.captured(5):
                return step
            time.sleep(0.02)
    pytest.fail(f"nothing is captured: {checkpointer.dropped}")
