"""Training whose state a copier pulls from the GPU, with the host device in its place; real agent, copier and kills."""

import signal

import pytest
from conftest import BUILD
from copiers import gone
from gpu_run import run
from test_gpu import lines, undisturbed  # noqa: F401  a fixture

PULL = ("--path", "pull")


@pytest.fixture
def pulling(agent):
    """An agent whose copiers find the host device; a copy of all the state takes them about 0.3 s."""
    agent.kill()
    return agent.start(LD_LIBRARY_PATH=str(BUILD / "lib" / "fakecuda"), FAKECUDA_RATE="3")


def test_a_pulled_run_killed_after_a_capture_goes_on_bit_exact(pulling, undisturbed, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    assert run(out, pulling, *PULL, "--die-at", "6") == -signal.SIGKILL
    assert gone(pulling.mark), "a copier outlived its trainer"
    assert run(out, pulling, *PULL) == 0
    assert lines(out, "restored") == [["0", "none"], ["6", "region"]]
    assert (out / "final").read_text() == undisturbed
    pulled, saves = map(int, lines(out, "pulled")[0][:2])
    assert pulled >= saves - 1 >= 1, "the first of a layout finds the copier unprepared, no other does"
    assert lines(out, "left") == [["0", "1", "0"]], "pinned memory, streams or events stayed"
    assert gone(pulling.mark), "a copier outlived its session"


def test_killed_in_a_pull_goes_on_from_the_one_before(pulling, undisturbed, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    assert run(out, pulling, *PULL, "--die-at", "9", "--die", "capturing", "--slow", "1000") == -signal.SIGKILL
    assert gone(pulling.mark), "a copier outlived its trainer"
    assert run(out, pulling, *PULL) == 0
    assert lines(out, "restored") == [["0", "none"], ["6", "region"]]
    assert (out / "final").read_text() == undisturbed


def test_a_copier_that_is_killed_costs_at_most_that_save(pulling, undisturbed, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    assert run(out, pulling, *PULL, "--kill-copier-at", "6", "--slow", "1000") == 0
    assert (out / "final").read_text() == undisturbed
    dropped = [why for _, _, why in lines(out, "gates") if why != "None"]
    assert dropped in ([], ["DEVICE"])
    assert lines(out, "last") == [["durable"]]


def test_an_agent_that_is_killed_takes_its_copiers_with_it(pulling, undisturbed, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    assert run(out, pulling, *PULL, "--die-at", "6") == -signal.SIGKILL
    pulling.kill()
    assert gone(pulling.mark), "a copier outlived its agent"
    pulling.start(LD_LIBRARY_PATH=str(BUILD / "lib" / "fakecuda"))
    assert run(out, pulling, *PULL) == 0
    assert lines(out, "restored")[1] == ["6", "region"]
    assert (out / "final").read_text() == undisturbed


def test_without_a_copier_it_pushes_and_says_why(agent, undisturbed, tmp_path):  # noqa: F811
    out = tmp_path / "out"
    agent.kill()
    agent.config.write_text(agent.config.read_text() + '[gpu]\ncopier = "off"\n')
    agent.start()
    assert run(out, agent, "--path", "pull", environment={"CKPTD_NO_PATH_WAIT": "1"}) == 0
    assert (out / "final").read_text() == undisturbed
    assert lines(out, "pulled")[0][0] == "0"
    assert "gpu.copier is off" in (out / "pulled").read_text()
