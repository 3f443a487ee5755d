"""A run that was killed ends as one that was not: every tensor, loss and batch, bit for bit."""

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from conftest import ROOT

LOOP = ROOT / "tests" / "python" / "train_loop.py"


def run(out, *arguments, ranks=1, restarts=0, environment=None):
    """Exit status of one launch."""
    out.mkdir(exist_ok=True)
    command = [sys.executable]
    if ranks > 1:
        command += [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={ranks}",
            f"--max-restarts={restarts}",
        ]
    command += [str(LOOP), "--out", str(out), *arguments]
    own = {"PYTHONPATH": f"{ROOT}/client/python:{ROOT}/tests/python", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment or {**os.environ, **own}, start_new_session=True)
    try:
        return process.wait(240)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def result(out, ranks):
    """Final digests, and the last loss written for each step."""
    finals = [(out / f"final.{rank}").read_text() for rank in range(ranks)]
    losses = [dict(line.split() for line in (out / f"loss.{rank}").read_text().splitlines()) for rank in range(ranks)]
    return finals, losses


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Result of a run without ckptd, for (ranks, workers); made once each."""
    made = {}

    def get(ranks, workers=0):
        if (ranks, workers) not in made:
            out = tmp_path_factory.mktemp("undisturbed")
            assert run(out, f"--workers={workers}", ranks=ranks) == 0
            made[ranks, workers] = result(out, ranks)
        return made[ranks, workers]

    return get


def restored(out, rank=0):
    return [line.split() for line in (out / f"restored.{rank}").read_text().splitlines()]


@pytest.mark.parametrize("workers", [0, 2])
def test_killed_trainer_goes_on_from_memory(agent, tmp_path, undisturbed, workers):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=14", f"--workers={workers}")
    assert run(out, *arguments, environment=agent.environment()) == -signal.SIGKILL
    assert run(out, *arguments, environment=agent.environment()) == 0
    assert restored(out) == [["0", "none"], ["12", "region"]]
    assert result(out, 1) == undisturbed(1, workers)


def test_killed_in_the_middle_of_a_capture(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=12", "--wait=none")
    assert run(out, *arguments, environment=agent.environment()) == -signal.SIGKILL
    assert run(out, *arguments, environment=agent.environment()) == 0
    assert restored(out)[1][0] in ("6", "9", "12")
    assert result(out, 1) == undisturbed(1)


def test_agent_killed_while_training(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    assert run(out, "--save", "--die-at=14", environment=agent.environment()) == -signal.SIGKILL
    agent.kill()
    agent.start()
    assert run(out, "--save", "--die-at=14", environment=agent.environment()) == 0
    assert restored(out)[1] == ["12", "region"]
    assert result(out, 1) == undisturbed(1)


def test_region_gone_as_after_a_reboot(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=14", "--wait=durable")
    assert run(out, *arguments, environment=agent.environment()) == -signal.SIGKILL
    agent.kill()
    agent.lose_region()
    agent.start()
    assert run(out, *arguments, environment=agent.environment()) == 0
    assert restored(out)[1] == ["12", "storage"]
    assert result(out, 1) == undisturbed(1)


def test_two_ranks_under_torchrun(agent, tmp_path, undisturbed):
    out = tmp_path / "out"
    arguments = ("--save", "--die-at=14", "--die-rank=1")
    assert run(out, *arguments, ranks=2, restarts=1, environment=agent.environment()) == 0
    for rank in range(2):
        assert [source for _, source in restored(out, rank)] == ["none", "region"]
    assert restored(out, 0) == restored(out, 1)
    assert result(out, 2) == undisturbed(2)


def test_no_agent_at_restore(tmp_path):
    out = pathlib.Path(tmp_path / "out")
    missing = {**os.environ, "CKPTD_SOCKET": str(tmp_path / "none.sock"), "PYTHONPATH": f"{ROOT}/client/python"}
    assert run(out, "--save", "--connect-timeout", "1", environment=missing) == 1
    assert not (out / "final.0").exists()
