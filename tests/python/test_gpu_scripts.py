"""tests/gpu against the host device: every part answers, what it cannot do is skipped, a broken driver is seen."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import types
import uuid

import pytest
from conftest import ROOT

GPU = ROOT / "tests" / "gpu"
sys.path.append(str(GPU))

import child  # noqa: E402
from pair import Pair  # noqa: E402
from results import Wrong, read  # noqa: E402

pytestmark = pytest.mark.night
CANNOT = ("the driver has no cuMemPool", "the driver has no cuModuleLoadData", "no nvidia-smi", "nvidia-smi: ",
          "only root", "no PID namespace")  # fmt: skip


PARTS = ("probe", "gate_word", "handles", "deaths")  # that ask the driver alone; the others: test_gpu_training.py


def host_device():
    """The folder of the library; a build that was named and has none fails the test."""
    named = os.environ.get("CKPTD_BUILD")
    for build in [pathlib.Path(named)] if named else [ROOT / "build" / name for name in ("dev", "release")]:
        if (build / "lib" / "fakecuda" / "libcuda.so.1").exists():
            return build / "lib" / "fakecuda"
    told = f"no lib/fakecuda/libcuda.so.1 in {named or 'build/dev and build/release'}: ninja fakecuda first"
    pytest.fail(told) if named else pytest.skip(told)


def environment(**more):
    return {
        **os.environ,
        "LD_LIBRARY_PATH": str(host_device()),
        "FAKECUDA_MEMORY": str(128 << 20),
        "FAKECUDA_RATE": "1000",
        "FAKECUDA_SHARED": uuid.uuid4().hex,
        **more,
    }


def command(out, *arguments):
    return [sys.executable, GPU / "run", "--out", out, *arguments]


def run(out, *arguments, **more):
    """The exit status, and the findings by part and case."""
    settings = environment(**more)
    done = subprocess.run(command(out, *arguments), env=settings, capture_output=True, text=True, timeout=300)
    assert (out / "results.jsonl").exists(), done.stderr
    return done.returncode, {(found["part"], found["case"]): found for found in read(out / "results.jsonl")}


def values(findings, part, case):
    assert findings[part, case]["status"] == "ok", findings[part, case]
    return findings[part, case]["values"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    parts = [word for part in PARTS for word in ("--part", part)]
    return run(tmp_path_factory.mktemp("gpu") / "out", "--seconds", "40", *parts)


def test_every_part_answers_and_nothing_fails(whole):
    status, findings = whole
    assert [found for found in findings.values() if found["status"] == "failed"] == []
    assert {part for (part, _), found in findings.items() if found["status"] == "ok"} == set(PARTS)
    assert status == 0


def test_what_the_host_device_cannot_do_is_skipped(whole):
    skipped = {key: found["reason"] for key, found in whole[1].items() if found["status"] == "skipped"}
    assert [reason for reason in skipped.values() if not reason.startswith(CANNOT)] == []
    for (part, case), found in whole[1].items():
        if "pool" in case or "context breaks" in case:
            assert found["status"] == "skipped", (part, case)


def test_the_gate_is_measured(whole):
    for case in ("a CPU store of another process releases the stream",
                 "a write of the stream is seen by another process's CPU"):  # fmt: skip
        found = values(whole[1], "gate_word", case)
        assert found["rounds"] == 200 and 0 < found["median_us"] <= found["max_us"]


@pytest.mark.parametrize("connections, went_on", [(1, False), (32, True)])
def test_one_hardware_queue_holds_up_other_streams(whole, connections, went_on):
    case = f"copies on another stream while one waits, CUDA_DEVICE_MAX_CONNECTIONS={connections}"
    assert values(whole[1], "gate_word", case)["went_on"] == went_on


def test_memory_without_a_handle_type_is_refused_where_it_is_exported(whole):
    found = whole[1]["handles", "no_handle, pull, same user"]
    assert (found["status"], found["values"]["step"], found["values"]["error"]) == (
        "refused", "export", "CUDA_ERROR_INVALID_VALUE")  # fmt: skip


def test_a_mapping_of_a_dead_exporter_is_seen_to_keep_its_memory(whole):
    for kind in ("legacy", "posix_fd"):
        found = values(whole[1], "deaths", f"exporter killed, importer idle, {kind}")
        assert found["copy"] == "success" and found["equal"]
        assert found["used_after_death"] == found["used_while_both_hold"] > 0
        assert (found["room_while_mapped"], found["room_after"], found["used_at_end"]) == (False, "close", 0)


def test_a_driver_that_refuses_is_a_failure_where_ckptd_relies_on_it(tmp_path):
    status, findings = run(tmp_path, "--part", "handles", FAKECUDA_FAIL="cuIpcOpenMemHandle:1")
    found = findings["handles", "legacy, pull, same user"]
    assert (found["status"], found["values"]["step"]) == ("failed", "import")
    assert found["reason"] == "cuIpcOpenMemHandle: CUDA_ERROR_INVALID_VALUE (1)"
    assert values(findings, "handles", "posix_fd, pull, same user")["equal"]
    assert status == 1


def test_a_gate_that_cannot_be_armed_is_a_failure(tmp_path):
    status, findings = run(tmp_path, "--part", "gate_word", FAKECUDA_FAIL="cuStreamWaitValue64:801")
    assert findings["gate_word", "the releaser is killed"]["status"] == "failed"
    assert status == 1


def test_a_copy_that_fails_after_a_death_is_named(tmp_path):
    # In each process the function is found, then an importer copies three times before its exporter dies.
    _, findings = run(tmp_path, "--part", "deaths", "--seconds", "30", FAKECUDA_FAIL="cuMemcpyDtoHAsync:719:4")
    found = values(findings, "deaths", "exporter killed, importer idle, posix_fd")
    assert found["copy"] == "CUresult 719" and "equal" not in found


def test_a_child_that_does_not_answer_is_told_from_a_part_without_time(monkeypatch):
    monkeypatch.setattr(child, "HANG_SECONDS", 0.2)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(host_device()))
    left = 10.0
    with child.Child("importer.py", lambda: left, None) as importer:
        importer.ask("start")
        importer.signal(signal.SIGSTOP)
        with pytest.raises(child.Hung):
            importer.ask("used")
        left = 0.1
        with pytest.raises(child.OutOfTime):
            importer.answer()
        assert importer.kill() < 5
        with pytest.raises(child.Died):
            importer.ask("used")


def test_a_copy_that_reports_success_with_other_bytes_is_a_failure():
    found = {}
    with pytest.raises(Wrong):
        Pair.compare(types.SimpleNamespace(crc=1), found, {"crc": 2})
    assert found == {"equal": False}


def test_a_budget_that_is_too_small_stops_cleanly(tmp_path):
    began = time.monotonic()
    status, findings = run(tmp_path, "--seconds", "0.05")
    assert time.monotonic() - began < 20
    assert status in (0, 77)
    assert {found["status"] for (part, _), found in findings.items() if part == "handles"} == {"skipped"}


def test_without_a_driver_nothing_passes(tmp_path):
    (tmp_path / "libcuda.so.1").write_text("")
    status, findings = run(tmp_path / "out", LD_LIBRARY_PATH=str(tmp_path))
    assert status == 77
    assert findings["probe", "device"]["reason"].startswith("no driver")
    assert {found["status"] for (part, _), found in findings.items() if part != "probe"} == {"skipped"}
    assert {part for part, _ in findings} == {*PARTS, "gpt", "bench", "contention"}
    assert "not probed" in (tmp_path / "out" / "summary.md").read_text()


def processes_with(text):
    found = []
    for environ in pathlib.Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [int(environ.parent.name)] if text.encode() in environ.read_bytes() else []
        except OSError:
            pass  # it ended meanwhile
    return found


def test_a_killed_run_keeps_its_findings_and_leaves_no_process(tmp_path):
    wanted = environment()
    deaths = command(tmp_path, "--part", "deaths")
    with subprocess.Popen(deaths, env=wanted, stdout=subprocess.PIPE, text=True) as running:
        told = [running.stdout.readline() for _ in range(3)]
        running.send_signal(signal.SIGKILL)
    findings = read(tmp_path / "results.jsonl")
    assert [f"{found['status']:8}deaths: {found['case']}\n" for found in findings[:3]] == told
    deadline = time.monotonic() + 5
    while processes_with(wanted["FAKECUDA_SHARED"]):
        assert time.monotonic() < deadline, processes_with(wanted["FAKECUDA_SHARED"])
        time.sleep(0.01)


def test_a_results_file_becomes_a_table(tmp_path):
    out = tmp_path / "results.jsonl"
    values = '{"rate": 12345.678, "what": "a|b"}'
    line = f'{{"part": "p", "case": "c", "status": "ok", "seconds": 0.5, "values": {values}}}\n'
    out.write_text(line + line[:20])
    text = subprocess.run([sys.executable, GPU / "results.py", out], capture_output=True, text=True, check=True).stdout
    assert text.splitlines() == [
        "No device was probed: 1 ok, 0 refused, 0 failed, 0 skipped", "", "## p", "", "| case | result | found |",
        "| --- | --- | --- |", "| c | ok | rate 1.235e+04; what a\\|b |",
    ]  # fmt: skip


def test_a_run_does_not_mix_with_an_older_one(tmp_path):
    (tmp_path / "results.jsonl").write_text("")
    done = subprocess.run(command(tmp_path), env=environment(), capture_output=True, text=True)
    assert done.returncode == 1 and "another folder" in done.stderr
