"""The parts of tests/gpu that train, at a size for the CPU: that they answer, that they find what is wrong, and that a
run without a GPU never passes for one with it."""

import json
import os
import random
import subprocess
import sys
import types

import pytest
from conftest import BUILD, ROOT, require_build
from test_gpu_scripts import host_device

GPU = ROOT / "tests" / "gpu"
sys.path.append(str(GPU))

import beside  # noqa: E402
import losses  # noqa: E402
import summary  # noqa: E402
from child import Child, Who  # noqa: E402
from results import Results, Wrong, read  # noqa: E402
from sizes import SIZES, fitting  # noqa: E402
from story import Plan, Story, _lines  # noqa: E402

pytestmark = pytest.mark.night
ON_CPU = ("--cpu", "--size", "tiny", "--seed", "7")
RUNS = {
    "gpt": ("run", "--part", "gpt", "--kills", "2"),
    "bench": ("run", "--part", "bench", "--windows", "4"),
    "graphs": ("second", "--part", "graphs", "--kills", "0"),
}
LISTS = {"optimizers": ("second", "--part", "optimizers", "--kills", "1")}


def ran(wanted, folder):
    """Exit status and findings by case of each, and its folder. Side by side: most of it is loading torch."""
    require_build()
    environment = {**os.environ, "CKPTD_BUILD": str(BUILD), "LD_LIBRARY_PATH": str(host_device())}
    started = {}
    for name, (script, *arguments) in wanted.items():
        command = [sys.executable, GPU / script, "--out", folder / name, *arguments, *ON_CPU]
        started[name] = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    told = {name: (running.communicate(timeout=200)[0], running.returncode) for name, running in started.items()}
    found = {name: {one["case"]: one for one in read(folder / name / "results.jsonl")} for name in wanted}
    return {name: (status, found[name], folder / name, text) for name, (text, status) in told.items()}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return ran(RUNS, tmp_path_factory.mktemp("gpu"))


def cases(runs, name):
    """Values by case; none may have failed."""
    findings = runs[name][1]
    assert {case: found.get("reason") for case, found in findings.items() if found["status"] == "failed"} == {}
    return {case: found["values"] for case, found in findings.items() if found["status"] == "ok"}


@pytest.mark.parametrize("name", RUNS)
def test_what_ran_on_the_cpu_says_so_and_is_no_answer_of_a_gpu(runs, name):
    assert runs[name][0] == 77
    assert "this says nothing about a GPU" in runs[name][3]
    assert {found["values"].get("device") for found in runs[name][1].values()} == {"cpu"}
    assert "GPU: not probed" in (runs[name][2] / "summary.md").read_text()


def test_a_gpt_that_is_killed_goes_on_bit_exact(runs):
    found = cases(runs, "gpt")
    kills = [values for case, values in found.items() if case.startswith("kill ")]
    assert len(kills) == 2 and kills[0]["step"] == 0
    assert all(values["losses_compared"] > 0 for values in kills)
    resumed = [*kills[1:], found["to the end"]]
    assert all(values["equal_restored"] and values["source"] == "region" and values["step"] > 0 for values in resumed)
    assert "agent_start_seconds" in kills[1]
    assert found["to the end"]["equal_at_the_end"] and found["to the end"]["durable"]
    last = found["all memory lost: from storage"]
    assert (last["source"], last["step"], last["equal_restored"]) == ("storage", Plan(SIZES["tiny"]).steps, True)


def test_replays_without_a_hook(runs):
    found = cases(runs, "graphs")
    assert found["to the end"]["equal_at_the_end"]
    assert found["a replay without a gate is dropped as UNGATED"]["dropped_because"][2] == "UNGATED"


def test_optimizers_with_lists(tmp_path):
    found = cases(ran(LISTS, tmp_path), "optimizers")
    for loop in ("lbfgs", "lists"):
        resumed = found[f"{loop}, to the end"]
        assert resumed["step"] > 0 and resumed["equal_restored"] and resumed["equal_at_the_end"]


def test_each_figure_is_there_with_its_limit(runs):
    found = cases(runs, "bench")
    for case, limit in (("capture, D2H", "limit of D2H: cuMemcpyDtoHAsync"),
                        ("restore from the region, H2D", "limit of H2D: cuMemcpyHtoDAsync")):  # fmt: skip
        assert found[case]["limit"] == found[limit]["value"] > 0
        assert found[case]["ratio"] == pytest.approx(found[case]["value"] / found[limit]["value"])
    for case in ("a step with a save against one without", "A/A: a step without against one without"):
        low, high = found[case]["spread"]
        assert found[case]["n"] == 4 and low <= found[case]["value"] <= high
    for case in ("ckptd save", "torch.save", "dcp.async_save, thread", "dcp.async_save, process"):
        values = found[f"{case}, then on disk"]
        assert 0 < values["blocked_seconds"] <= values["done_seconds"]
    assert found["blocking: host time in step() and gate()"]["n"] == 4


def test_a_capture_of_a_device_is_not_faster_than_its_copies(agent, tmp_path):
    rate = 100  # bytes a microsecond: most of what is measured is the copying
    environment = agent.environment(LD_LIBRARY_PATH=str(host_device()), CKPTD_BUILD=str(BUILD), FAKECUDA_RATE=str(rate))
    script = str(ROOT / "tests" / "python" / "gpu_bench.py")
    log, who = open(tmp_path / "log", "wb"), Who(environment=environment)
    with log, Child(script, lambda: 100.0, log, who, 60) as child:
        started = child.ask("start", size=SIZES["tiny"].values(), device="cpu", socket=str(agent.socket),
                            region=str(agent.region), window_seconds=0.01)  # fmt: skip
        assert started["pinned_bytes"] > started["state_bytes"] and started["pin_error"] == ""
        limits = child.ask("limits", block=1 << 18, count=4, rounds=3)
        captures = child.ask("captures", rounds=3)
        restored = child.ask("restore", rounds=1)
    assert all(0 < each <= rate * 1e6 * 1.05 for way in ("out", "in") for each in limits[way])
    assert all(captures["bytes"] / seconds <= rate * 1e6 * 1.05 for seconds in captures["copied_seconds"])
    assert restored["sources"] == ["region"] and restored["bytes"] / restored["seconds"][0] <= rate * 1e6 * 1.05


def test_what_the_cpu_has_not_is_skipped(runs):
    skipped = {case: found["reason"] for case, found in runs["bench"][1].items() if found["status"] == "skipped"}
    assert {case: reason.split(":")[0] for case, reason in skipped.items()} == {
        "blocking: the gate on the stream": "no stream on the CPU",
        "dcp.async_save, process, pinned staging, then on disk": "pinned staging needs a GPU",
    }


def test_nothing_that_was_written_is_left(runs):
    for name in RUNS:
        assert {path.name for path in runs[name][2].iterdir()} == {"results.jsonl", "children.log", "summary.md"}


def test_the_summary_holds_the_figures(runs):
    text = (runs["bench"][2] / "summary.md").read_text()
    assert "* command: `run --out " in text and "## Figures" in text
    assert text.count("| capture, D2H |") == 2  # among the figures, and among everything


def story(tmp_path, **changes):
    """A Story that has seen an undisturbed run of four steps, without a trainer."""
    made = Story.__new__(Story)
    made._losses = {step: float(step).hex() for step in range(1, 5)}
    made._digests, made._folder, made._captured = {4: "right"}, tmp_path, 0
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def line(step, loss=None, **more):
    return {"step": step, "loss": float(loss or step).hex(), "captured": 0, **more}


def test_another_loss_is_found(tmp_path):
    values = {}
    with pytest.raises(Wrong, match="step 3"):
        list(story(tmp_path)._compared(values, iter([line(1), line(2), line(3, loss=3.0000001)])))
    assert values["losses_compared"] == 2


def test_another_tensor_is_found_and_named(tmp_path):
    (tmp_path / "digests-4.json").write_text(json.dumps({"a": "1", "b": "2"}))
    (tmp_path / "digests-now.json").write_text(json.dumps({"a": "1", "b": "3"}))
    child = types.SimpleNamespace(ask=lambda do, **_: {"digest": "wrong"})
    values = {}
    with pytest.raises(Wrong, match=r"1 of 2 tensors differ, first \['b'\]"):
        story(tmp_path)._compare(values, child, 4, "restored")
    assert values == {"equal_restored": False}


def test_a_step_that_was_captured_and_did_not_come_back_is_found(tmp_path):
    child = types.SimpleNamespace(kill=lambda: None)
    lost = story(tmp_path, _captured=8, _killed=None)
    lost._start = lambda values, job, last: values.update(step=4) or child
    with pytest.raises(Wrong, match="step 8 was captured, the trainer got step 4"):
        lost._resume({})


def test_a_trainer_that_is_at_the_end_is_not_waited_for():
    asked = []
    child = types.SimpleNamespace(post=lambda do, to: asked.append(to), answer=lambda: ({"step": 0}, []))
    assert list(_lines(child, 12, 12)) == [] and asked == []
    assert len(list(_lines(child, 9, 12))) == 3 and asked == [12]


def test_one_bit_changes_the_digest():
    torch = pytest.importorskip("torch")
    from model import digest

    for shape, kind in ((1000, torch.float32), ((), torch.float32), (999, torch.bfloat16)):
        tensor = torch.randn(shape).to(kind)
        before = digest(tensor)
        assert digest(tensor.clone()) == before
        raw = tensor.reshape(-1).view(torch.uint8)
        for place in (0, raw.numel() // 2, raw.numel() - 1):
            raw[place] ^= 1
            assert digest(tensor) != before, (shape, kind, place)
            raw[place] ^= 1
    words = torch.arange(4096)
    assert digest(words.flip(0)) != digest(words), "the places count"


def test_the_interval_holds_what_is_there_and_nothing_is_nothing():
    draw = random.Random(1)
    without = [1 + draw.gauss(0, 0.01) for _ in range(30)]
    slower = [1.1 + draw.gauss(0, 0.01) for _ in range(30)]
    low, high = losses.interval(slower, without, random.Random(2))
    assert low < losses.loss_of(slower, without) < high and 0.08 < low and high < 0.12
    low, high = losses.interval(without, [1 + draw.gauss(0, 0.01) for _ in range(30)], random.Random(3))
    assert low < 0 < high


def test_the_model_gets_smaller_where_memory_is(tmp_path, monkeypatch):
    room = types.SimpleNamespace(f_bavail=10 << 30, f_frsize=1)
    monkeypatch.setattr(os, "statvfs", lambda path: room)
    fewer = fitting(SIZES["full"], tmp_path)
    assert 0 < fewer.layers < SIZES["full"].layers and 3 * fewer.state_bytes() < room.f_bavail
    assert SIZES["full"].parameters() > 0.85e9 and SIZES["full"].state_bytes() > 12e9


@pytest.mark.parametrize("part, status, device, answered", [
    ("gpt", "ok", "cuda", True), ("gpt", "ok", "cpu", False), ("gpt", "skipped", "cuda", False),
    ("probe", "ok", None, False), ("handles", "ok", None, True)])  # fmt: skip
def test_who_has_answered(tmp_path, part, status, device, answered):
    results = Results(tmp_path / "results.jsonl")
    results.add(part, "case", status, {"device": device} if device else {})
    assert results.driver_answered == answered


def test_the_summary_of_a_gpu(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    results.add("probe", "device", "ok", {"name": "A GPU", "driver": 12080})
    results.add("probe", "nvidia-smi", "ok", {"driver_version": "580.1"})
    results.add("handles", "legacy, pull, same user", "ok", {"bytes_per_second": 5.5e10})
    results.add("handles", "no_handle, pull, same user", "refused", {"error": "CUDA_ERROR_INVALID_VALUE"})
    died = {"copy": "success", "room_after": "close", "seconds_until_room": 0.25}
    results.add("deaths", "exporter exits, posix_fd", "ok", died)
    results.add("bench", "capture, D2H", "ok", {"value": 5e10, "unit": "B/s", "limit": 5.5e10, "ratio": 0.91})
    summary.write(tmp_path / "summary.md", read(tmp_path / "results.jsonl"), 0.0, ["run", "--out", "a b"])
    lines = (tmp_path / "summary.md").read_text().splitlines()
    assert lines[:3] == [
        "* date: 1970-01-01 00:00 UTC", "* GPU: A GPU; driver: 580.1", "* command: `run --out 'a b'`"]  # fmt: skip
    assert "| pull, same user | ok, 55 GB/s |  | refused, CUDA_ERROR_INVALID_VALUE |  |" in lines
    assert "| exporter exits |  | ok, copy: success, room after close, 0.25 s |  |  |" in lines
    assert "| capture, D2H |  | 5e+10 B/s | 5.5e+10 | 0.91 |  |  |" in lines
