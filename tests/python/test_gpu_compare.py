"""tests/gpu/compare, which tools/bench/peers --device cuda runs: on the CPU at a small size, with the host device in
place of the GPU, and its figures by themselves."""

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
import summary  # noqa: E402
from bench import Measured  # noqa: E402
from child import Broken, Child, Who  # noqa: E402
from results import Results, Skip, Wrong, read  # noqa: E402
from sizes import SIZES  # noqa: E402
from ways import Others  # noqa: E402

WINDOWS = 4
HERE = ("ckptd, push", "torch.save", "safetensors", "dcp.async_save, thread", "dcp.async_save, process")


def compare(out, *arguments, driver):
    """As a user calls it: exit status, what it prints, findings by case."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(driver)}
    tool = [sys.executable, ROOT / "tools" / "bench" / "peers" / "compare.py", "--device", "cuda", "--build", BUILD]
    command = [*tool, "--out", out, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=250)
    assert (out / "results.jsonl").exists(), done.stderr
    return done.returncode, done.stdout, {one["case"]: one for one in read(out / "results.jsonl")}


@pytest.fixture(scope="module")
def on_cpu(tmp_path_factory):
    require_build()
    small = ("--cpu", "--size", "tiny", "--windows", str(WINDOWS), "--seed", "7", "--part", "beside")
    out = tmp_path_factory.mktemp("compare") / "out"
    return *compare(out, *small, driver=host_device()), out


def test_every_way_is_measured_with_its_interval_and_beside_nothing(on_cpu):
    found = {case: one["values"] for case, one in on_cpu[2].items() if one["status"] == "ok"}
    assert set(found) - {"start", "torch_checkpointing"} == set(HERE), on_cpu[1]
    for way in HERE:
        values = found[way]
        assert values["n"] == WINDOWS and values["step_seconds"] > 0
        for name in ("loss", "again"):
            low, high = values[f"{name}_interval"]
            assert low <= values[name] <= high
        assert 0 < values["blocked_seconds"] <= values["most_blocked_seconds"] < values["done_seconds"] * 10
    for way in HERE[1:3]:  # what blocks is in the step, as far as so few windows can tell
        assert found[way]["loss_interval"][1] * found[way]["step_seconds"] > found[way]["blocked_seconds"] / 2
    assert found["ckptd, push"]["pulled"] == 0


def test_what_ran_on_the_cpu_is_no_answer_of_a_gpu(on_cpu):
    status, told, findings, out = on_cpu
    assert status == 77 and "this says nothing about a GPU" in told
    skipped = {case: one["reason"] for case, one in findings.items() if one["status"] == "skipped"}
    skipped.pop("torch_checkpointing", None)
    assert skipped == {"ckptd, pull": "pull needs state on a GPU",
                       "dcp.async_save, process, pinned staging": "pinned staging needs a GPU"}  # fmt: skip
    assert {path.name for path in out.iterdir()} == {"results.jsonl", "children.log", "summary.md"}


def test_the_table_is_printed_and_written(on_cpu):
    row = next(line for line in on_cpu[1].splitlines() if line.startswith("| torch.save | cpu |"))
    assert row in (on_cpu[3] / "summary.md").read_text().splitlines()
    assert row.count(" % (") == 2


def test_without_a_gpu_it_says_so(tmp_path):
    require_build()
    (tmp_path / "libcuda.so.1").write_text("")
    status, told, findings = compare(tmp_path / "out", driver=tmp_path)
    assert status == 77
    assert "No CUDA driver answered" in told and "libcuda.so.1" in told
    assert {one["status"] for case, one in findings.items() if case in ("device", "the part itself")} == {"skipped"}


@pytest.fixture
def host_part(agent, tmp_path):
    """A part, and what measures for it: a child whose state is on the host device."""
    agent.kill()
    agent.start(LD_LIBRARY_PATH=str(host_device()))
    environment = agent.environment(LD_LIBRARY_PATH=str(host_device()), CKPTD_BUILD=str(BUILD))
    options = types.SimpleNamespace(windows=WINDOWS, seed=3, size="tiny", cpu=True)
    script = str(ROOT / "tests" / "python" / "gpu_bench.py")
    who, log = Who(environment=environment), open(tmp_path / "log", "wb")
    with log, Child(script, lambda: 100.0, log, who, 60) as child:
        part = types.SimpleNamespace(options=options, left=lambda: 100.0, log=log)
        places = types.SimpleNamespace(socket=str(agent.socket), region=agent.region, storage=agent.storage)
        measured = Measured(part, child, places)
        measured.start({}, SIZES["tiny"])
        yield part, measured


def test_both_paths_on_the_host_device(host_part):
    part, measured = host_part
    for way in ("ckptd, push", "ckptd, pull", "torch.save"):
        values = {}
        beside._measure(values, measured, part, way, 60.0)
        assert values["n"] == WINDOWS and 0 < values["blocked_seconds"], values
        if way != "torch.save":
            assert (values["pulled"] >= WINDOWS) == (way == "ckptd, pull"), values


def test_windows_end_with_their_time(host_part):
    part, measured = host_part
    measured.prepare("ckptd, push")
    assert measured.windows(seconds=-1.0) == {}
    with pytest.raises(Skip, match="fewer than 3 saves"):
        beside._measure({}, measured, part, "torch.save", -1.0)


def test_kinds_of_windows_take_turns(host_part):
    measured = host_part[1]
    measured.prepare("ckptd, push")
    found = measured.windows()
    assert {kind: len(windows) for kind, windows in found.items()} == {"save": 4, "without": 4, "again": 4}
    assert all(("done_seconds" in one) == (kind == "save") for kind, windows in found.items() for one in windows)


def windows_of(save, without, again, **more):
    """Windows of these seconds; whatever else a window with a save tells."""
    told = {"host_seconds": 0.001, "gate_stream_seconds": 0.0, "done_seconds": 2.0, **more}
    made = {"save": save, "without": without, "again": again}
    return {kind: [{**told, "seconds": one} for one in seconds] for kind, seconds in made.items()}


def test_figures():
    noise = [0.99, 1.0, 1.01] * 10
    values = beside.figures_of(windows_of([1.2 * one for one in noise], noise, noise), random.Random(1))
    assert values["n"] == 30 and values["step_seconds"] == 1.0
    assert values["loss"] == pytest.approx(0.2) and values["again"] == 0.0
    again = beside.figures_of(windows_of(noise, noise, [1.1 * one for one in noise]), random.Random(1))
    assert again["loss"] == 0.0 and again["again"] == pytest.approx(0.1) and again["again_interval"][0] > 0.07
    low, high = values["loss_interval"]
    assert 0.17 < low <= 0.2 <= high < 0.23
    low, high = values["again_interval"]
    assert -0.03 < low <= 0 <= high < 0.03
    windows = windows_of(noise, noise, noise)
    windows["save"][3].update(host_seconds=0.5, gate_stream_seconds=0.25)
    values = beside.figures_of(windows, random.Random(1))
    assert (values["blocked_seconds"], values["most_blocked_seconds"]) == (0.001, 0.5)
    assert values["most_gate_stream_seconds"] == 0.25
    assert "gate_stream_seconds" not in beside.figures_of(
        windows_of(noise, noise, noise, gate_stream_seconds=None), random.Random(1))  # fmt: skip


def test_a_peer_is_waited_for_before_the_state_changes_and_when_the_step_is_over():
    done = []
    calls = ("settle", "finish", "remove")
    saving = types.SimpleNamespace(**{name: lambda name=name: done.append(name) for name in calls})
    way = Others(types.SimpleNamespace(begin=lambda way: done.append(way) or saving), "a way")
    way.step(1)
    way.gate()
    assert done == []
    way.save(2)
    way.gate()
    way.finish()
    way.remove()
    assert done == ["a way", "settle", "finish", "remove"]
    way.gate()
    assert len(done) == 4, "nothing is being saved"


class Canned:
    """In place of Measured."""

    def __init__(self, pulled=0, error=None):
        self.pulled, self._error = pulled, error

    def prepare(self, way):
        if self._error:
            raise self._error

    def windows(self, seconds):
        return windows_of([1.0] * 5, [1.0] * 5, [1.0] * 5)


PART = types.SimpleNamespace(options=types.SimpleNamespace(windows=5, seed=1, cpu=False))


@pytest.mark.parametrize("way, pulled", [("ckptd, pull", 4), ("ckptd, push", 5)])
def test_a_save_on_the_other_path_is_wrong(way, pulled):
    with pytest.raises(Wrong, match=f"{pulled} of 5 saves were pulled"):
        beside._measure({}, Canned(pulled), PART, way, 60.0)


def test_a_peer_that_breaks_is_skipped_and_ckptd_is_not():
    broken = Broken("Traceback\n  a line\nOSError: it did\n")
    with pytest.raises(Skip, match="^it fails here: OSError: it did$"):
        beside._measure({}, Canned(error=broken), PART, "safetensors", 60.0)
    with pytest.raises(Broken):
        beside._measure({}, Canned(error=broken), PART, "ckptd, push", 60.0)


def test_the_table_of_ways(tmp_path):
    results = Results(tmp_path / "results.jsonl")
    values = {"device": "cuda"}
    beside._measure(values, Canned(pulled=7), PART, "ckptd, pull", 60.0)
    results.add("beside", "ckptd, pull", "ok", values)
    results.add("beside", "torch.save", "skipped", {"way": "torch.save", "device": "cuda"}, "out of time")
    assert summary.ways(read(tmp_path / "results.jsonl"))[2:] == [
        "| ckptd, pull | cuda | 1 (1) | 0 (0) | 0.00 % (0.00 to 0.00) | 0.00 % (0.00 to 0.00) | 2 | 5 |",
        "| torch.save | skipped: out of time |  |  |  |  |  |  |",
    ]
