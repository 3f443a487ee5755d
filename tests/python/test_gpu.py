"""Training whose state lives on a GPU, with the host device in its place (host_device.py); real agent, real kills."""

import pytest
from gpu_run import run

SLOW = ["--slow", "300000"]  # a copy of all the state takes about a quarter of a second


def lines(out, name):
    return [line.split() for line in (out / name).read_text().splitlines()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    out = tmp_path_factory.mktemp("undisturbed")
    assert run(out) == 0
    return (out / "final").read_text()


@pytest.mark.parametrize("queues", ["8", "1"])
def test_killed_after_a_capture_goes_on_bit_exact(agent, undisturbed, tmp_path, queues):
    out, environment = tmp_path / "out", {"CUDA_DEVICE_MAX_CONNECTIONS": queues} if queues == "1" else {}
    assert run(out, agent, "--die-at", "6", environment=environment) == -9
    assert run(out, agent, environment=environment) == 0
    assert lines(out, "restored") == [["0", "none"], ["6", "region"]]
    assert (out / "final").read_text() == undisturbed


def test_killed_in_a_capture_goes_on_from_the_one_before(agent, undisturbed, tmp_path):
    out = tmp_path / "out"
    assert run(out, agent, "--die-at", "9", "--die", "capturing", *SLOW) == -9
    assert run(out, agent) == 0
    assert lines(out, "restored") == [["0", "none"], ["6", "region"]]
    assert (out / "final").read_text() == undisturbed


def test_a_lost_region_is_restored_from_storage(agent, undisturbed, tmp_path):
    out = tmp_path / "out"
    assert run(out, agent, "--die-at", "6", "--die", "durable") == -9
    agent.kill()
    agent.lose_region()
    agent.start()
    assert run(out, agent) == 0
    assert lines(out, "restored") == [["0", "none"], ["6", "storage"]]
    assert (out / "final").read_text() == undisturbed


def test_an_agent_that_is_killed_costs_no_step(agent, undisturbed, tmp_path):
    out = tmp_path / "out"
    assert run(out, agent, "--die-at", "6") == -9
    agent.kill()
    agent.start()
    assert run(out, agent) == 0
    assert lines(out, "restored")[1] == ["6", "region"]
    assert (out / "final").read_text() == undisturbed


def test_the_thread_does_not_wait_for_the_copy(agent, undisturbed, tmp_path):
    out = tmp_path / "out"
    assert run(out, agent, "--no-selfcheck", *SLOW) == 0
    assert (out / "final").read_text() == undisturbed
    started = [float(seconds) for seconds, _, why in lines(out, "gates") if why == "None"]
    assert started and min(started) < 0.05, "step() and the gate took as long as the copy"
    assert lines(out, "last") == [["durable"]]
    assert int((out / "pinned").read_text()) > 0
    assert lines(out, "left") == [["0", "1", "0"]], "pinned memory, streams or events stayed"


def test_updates_on_another_stream_are_noticed(agent, tmp_path):
    out = tmp_path / "out"
    assert run(out, agent, "--forget-stream", *SLOW) == 0
    assert lines(out, "first") == [["TORN"]]
