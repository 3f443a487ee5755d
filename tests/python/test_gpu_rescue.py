"""The state of a training process that died, captured from the GPU by the agent's copier. Real processes and kills, with
the host device in place of a GPU."""

import signal
import time

import pytest
from copiers import gone
from gpu_run import run
from test_gpu import lines, undisturbed  # noqa: F401  a fixture
from test_gpu_pull import pulling  # noqa: F401  a fixture

# Saves at 3, 6 and 9; the run dies at 8.
DIES = ("--postmortem", "--die-at", "8", "--die")


def restored(out):
    return lines(out, "restored")[1]


def committed(agent, step, deadline=20.0):
    """Waits until the step is on storage as a whole."""
    end = time.monotonic() + deadline
    while not list(agent.storage.glob(f"gpu/step-{step:010}.*/manifest.json")):
        assert time.monotonic() < end, f"step {step} did not become durable"
        time.sleep(0.01)


@pytest.mark.parametrize("exception", ["exception", "handled"])
def test_an_exception_between_two_updates_loses_no_step(pulling, undisturbed, tmp_path, exception):  # noqa: F811
    out = tmp_path / "out"
    assert run(out, pulling, *DIES, exception) == 1
    assert run(out, pulling, "--postmortem") == 0
    assert lines(out, "rescue")[0] == ["armed"]
    assert restored(out) == ["8", "rescued"]
    assert (out / "final").read_text() == undisturbed
    assert gone(pulling.mark), "a copier outlived its trainer"


def test_killed_between_two_updates_its_step_reaches_the_storage(pulling, undisturbed, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    assert run(out, pulling, *DIES, "between", "--path", "pull") == -signal.SIGKILL
    committed(pulling, 8)
    pulling.kill()
    pulling.lose_region()
    pulling.start()
    assert run(out, pulling) == 0
    assert restored(out) == ["8", "storage"]
    assert (out / "final").read_text() == undisturbed


@pytest.mark.parametrize("where", ["updating", "queued"])
def test_killed_in_an_update_goes_on_from_the_last_save(pulling, undisturbed, tmp_path, where):  # noqa: F811
    out = tmp_path / "out"
    assert run(out, pulling, *DIES, where) == -signal.SIGKILL
    assert run(out, pulling, "--postmortem") == 0
    assert restored(out) == ["6", "region"]
    assert (out / "final").read_text() == undisturbed


def test_killed_in_a_capture_that_is_finished(pulling, undisturbed, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    dies = ("--postmortem", "--die-at", "9", "--die", "capturing")
    assert run(out, pulling, *dies, "--path", "pull", "--slow", "1000") == -signal.SIGKILL
    assert run(out, pulling, "--postmortem", "--path", "pull") == 0
    assert restored(out)[0] == "9"
    assert (out / "final").read_text() == undisturbed
