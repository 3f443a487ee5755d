"""tools/bench/peers as a user calls it, at tiny sizes and with nothing that needs the network; and its figures."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from conftest import BUILD, ROOT, require_build

PEERS = ROOT / "tools" / "bench" / "peers"
sys.path.append(str(PEERS))

from peerbench import environments, figures, rounds, table, workloads  # noqa: E402
from peerbench.state import State  # noqa: E402
from peerbench.visit import combined  # noqa: E402

SMALL = ("--compute", "0.005", "--caches", "files", "--disk", "own", "--build", BUILD)
LIAR = """
class StateDict(dict):
    pass

class Snapshot:
    def __init__(self, path):
        pass

    @staticmethod
    def async_take(path, state):
        import pathlib
        pathlib.Path(path).mkdir()
        return Snapshot(path)

    def wait(self):
        pass

    def restore(self, state):
        pass
"""


def start(tmp_path, *arguments, **environment):
    (tmp_path / "disk").mkdir()
    command = [sys.executable, PEERS / "compare.py", *SMALL, "--dir", tmp_path / "disk", "--out", tmp_path / "out.json"]
    return subprocess.Popen([*command, *arguments], env={**os.environ, **environment}, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)  # fmt: skip


def compare(tmp_path, *arguments, **environment):
    """Exit status, what it prints, its document."""
    process = start(tmp_path, *arguments, **environment)
    told, errors = process.communicate(timeout=250)
    assert (tmp_path / "out.json").exists(), errors
    assert list((tmp_path / "disk").iterdir()) == [], "something is left behind"
    return process.returncode, told, json.loads((tmp_path / "out.json").read_text())


def pretend(tmp_path, monkeypatch, way, script):
    """An environment for `way` whose interpreter is `script`."""
    monkeypatch.setenv("CKPTD_CACHE", str(tmp_path / "cache"))
    folder = environments.folder_of(way)
    (folder / "bin").mkdir(parents=True)
    (folder / ".complete").touch()
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    return folder


def test_two_ranks_each_on_a_node_of_its_own(tmp_path):
    require_build()
    status, told, document = compare(tmp_path, "--workload", "2x1MiB/4", "--ways", "ckptd-copies", "--n", "1")
    assert status == 0
    result = document["workloads"][0]["ways"]["ckptd-copies"]
    assert result["failures"] == []
    [visit] = result["visits"]
    assert 0 < visit["captured"] <= visit["in_memory"] and visit["durable"] is None
    assert "never" in told


@pytest.mark.night
def test_three_ways_at_a_tiny_size(tmp_path):
    require_build()
    ways = ("ckptd", "torch.save", "safetensors")
    arguments = ("--workload", "1MiB/4", "--ways", ",".join(ways), "--n", "1")
    status, told, document = compare(tmp_path, *arguments)
    assert status == 0 and document["complete"]
    [found] = document["workloads"]
    assert (found["bytes"], found["ranks"], found["tensors"]) == (1 << 20, 1, 4)
    assert tuple(found["ways"]) == ways
    for way, result in found["ways"].items():
        assert result["error"] is None and result["version"]
        assert len(result["visits"]) == 1
        check_figures(result)
        assert any(line.startswith(f"| {way} (") for line in told.splitlines())
    for way in ways[1:]:  # they stand still until it is on the disk
        [visit] = found["ways"][way]["visits"]
        assert 0 < visit["durable"] <= visit["blocked"] and visit["steps"] == 1
    assert found["best"]["restore"]["way"] in ways[1:]
    assert "durable" not in found["best"], "neither of the two is asynchronous"


def check_figures(result):
    [visit] = result["visits"]
    for name in ("blocked", "captured", "durable", "restore", "step", "memcpy", "write", "read", "cached"):
        assert 0 < result["figures"][name]["median"] == pytest.approx(visit[name], rel=1e-3)
    assert visit["caches"] == "advised" and visit["written"] <= visit["durable"]


@pytest.mark.night
def test_several_ranks(tmp_path):
    require_build()
    status, _, document = compare(tmp_path, "--workload", "2x64KiB/3", "--ways", "ckptd", "--n", "1")
    [found] = document["workloads"]
    assert (status, found["ranks"], found["bytes"]) == (0, 2, 2 * 3 * (65536 // 12) * 4)
    check_figures(found["ways"]["ckptd"])


@pytest.mark.night
def test_what_was_not_saved_is_noticed(tmp_path, monkeypatch):
    """A peer that saves nothing, and says it restored."""
    script = f'PYTHONPATH=$PYTHONPATH:$(dirname $0) exec {sys.executable} "$@"'
    folder = pretend(tmp_path, monkeypatch, "torchsnapshot", script)
    (folder / "bin" / "torchsnapshot.py").write_text(LIAR)
    dist = folder / "bin" / "torchsnapshot-0.dist-info"
    dist.mkdir()
    (dist / "METADATA").write_text("Metadata-Version: 2.1\nName: torchsnapshot\nVersion: 0\n")
    status, told, document = compare(tmp_path, "--workload", "64KiB/2", "--ways", "torchsnapshot", "--n", "1")
    result = document["workloads"][0]["ways"]["torchsnapshot"]
    assert result["error"].startswith("Wrong: r00_t00000 was restored otherwise than it was saved after")
    assert status == 0 and result["error"] in told
    assert len(result["failures"]) == 1 and not result["visits"]


@pytest.mark.night
def test_a_peer_that_fails_or_hangs_is_a_row(tmp_path, monkeypatch):
    pretend(tmp_path, monkeypatch, "dlrover", "sleep 1000 &\nsleep 1000")
    pretend(tmp_path, monkeypatch, "torchsnapshot", "echo 'Boom: it is broken' >&2; exit 3")
    arguments = ("--workload", "64KiB/2", "--ways", "dlrover-disk,torchsnapshot", "--n", "2", "--deadline", "2")
    status, told, document = compare(tmp_path, *arguments)
    errors = {way: result["error"] for way, result in document["workloads"][0]["ways"].items()}
    assert errors == {"dlrover-disk": "Failed: hangs: no answer within its time",
                      "torchsnapshot": "Failed: ended with status 3: Boom: it is broken"}  # fmt: skip
    assert [len(result["failures"]) for result in document["workloads"][0]["ways"].values()] == [2, 2]
    assert all(f"| {way} | {error} |" in told for way, error in errors.items()) and status == 0


@pytest.mark.night
def test_an_installation_that_fails_is_a_row(tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    _, _, document = compare(tmp_path, "--workload", "64KiB/2", "--ways", "torchsnapshot", "--n", "1")
    error = document["workloads"][0]["ways"]["torchsnapshot"]["error"]
    assert error.startswith("NotInstalled: ERROR: No matching distribution found for torchsnapshot==")
    assert list((tmp_path / "cache").iterdir()) == []


@pytest.mark.night
def test_it_leaves_nothing_when_it_is_stopped(tmp_path):
    require_build()
    process = start(tmp_path, "--workload", "64KiB/2", "--ways", "ckptd", "--compute", "30", "--n", "1")
    deadline = time.monotonic() + 60
    while not list((tmp_path / "disk").glob("*/ckptd-*/storage/*")) and time.monotonic() < deadline:
        time.sleep(0.05)  # until its agent has made its storage
    children = children_of(process.pid)
    assert children
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130 and list((tmp_path / "disk").iterdir()) == []
    assert [child for child in children if os.path.exists(f"/proc/{child}")] == []


def children_of(pid):
    return pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_the_state_is_known():
    state = State(3, 5, 1000)
    state.fill(7)
    assert state.differs(7) == "" and state.differs(8) == "r03_t00000"
    state.optimizer.step()
    assert state.differs(8) == ""
    state.tensors["r03_t00004"][-1] += 1
    assert state.differs(8) == "r03_t00004"
    state.clear()
    assert state.differs(8) == "r03_t00000"
    other = State(4, 5, 1000)
    other.fill(7)
    assert not set(other.tensors) & set(state.tensors)


def test_what_is_lost_is_the_slowest_ranks():
    fast = {"wall": 6.0, "steps": 4, "before": 1.0, "after": 1.25, "blocked": 0.5, "gate": 0.25,
            "captured": 1.0, "written": 2.0, "done": 3.0}  # fmt: skip
    slow = {**fast, "wall": 6.5, "blocked": 0.75, "done": 3.5}
    found = combined([fast, slow], durable=True)
    assert (found["lost"], found["blocked"], found["durable"], found["drift"]) == (2.5, 0.75, 3.5, 1.0)
    assert found["in_memory"] is None and found["written"] == 2.0
    never = combined([fast], durable=False)
    assert (never["written"], never["durable"], never["in_memory"]) == (None, None, 3.0)


def test_medians_their_spread_and_ratios_of_the_same_visit():
    visits = [{"durable": 2.0, "write": 1.0}, {"durable": 9.0, "write": 3.0}, {"durable": 3.0, "write": 3.0}]
    found = figures.of_visits([{**visit, "restore": None} for visit in visits])
    assert found["durable"] == {"median": 3.0, "low": 2.0, "high": 9.0, "values": [2.0, 9.0, 3.0], "of_limit": 2.0}
    assert "restore" not in found and found["write"]["median"] == 3.0


def test_another_way_begins_each_round():
    assert [rounds.turned(["a", "b", "c"], by)[0] for by in range(4)] == ["a", "b", "c", "a"]
    assert sorted(rounds.turned(["a", "b", "c"], 2)) == ["a", "b", "c"]


def figure(lost, durable=None):
    return {name: figures.spread([value]) for name, value in (("lost", lost), ("durable", durable)) if value}


def test_the_best_peer_is_neither_ours_nor_a_limit_and_for_durable_asynchronous():
    found = {"plain-copy": figure(0.02), "ckptd": figure(0.04, 1.0), "torch.save": figure(2.0, 1.5),
             "dcp-staged": figure(0.4, 2.5), "dlrover-memory": figure(0.8)}  # fmt: skip
    best = figures.add_best(found)
    assert (best["lost"]["way"], best["durable"]["way"]) == ("dcp-staged", "dcp-staged")
    assert found["ckptd"]["lost"]["of_best"] == 0.1 and found["ckptd"]["durable"]["of_best"] == 0.4
    assert found["ckptd"]["lost"]["of_plain_copy"] == 2.0 and "durable" not in found["dlrover-memory"]
    lucky = {"ckptd": figure(0.04), "torch.save": figure(-0.1)}
    figures.add_best(lucky)
    assert lucky["ckptd"]["lost"]["of_best"] is None, "no ratio to what was not lost"


def test_the_table_has_a_row_for_every_way():
    once = [{"error": "Failed: a race"}]
    done = {"version": "9", "error": None, "failures": [], "figures": figure(0.4, 2.5)}
    failed = {"version": None, "error": "Failed: OSError: too many", "failures": once, "figures": {}}
    memory = {"version": "1", "error": None, "failures": once, "figures": figure(0.4)}
    found = {"name": "x", "bytes": 1 << 30, "ranks": 1, "tensors": 2,
             "ways": {"dcp-staged": done, "torchsnapshot": failed, "dlrover-memory": memory}}  # fmt: skip
    rows = [line for line in table.table(found, "own") if line.startswith("| ")]
    assert len({row.count("|") for row in rows}) == 1 and len(rows) == 5
    assert rows[2].startswith("| dcp-staged (9) | ") and " 2.500 | " in rows[2]
    assert rows[3].startswith("| torchsnapshot | Failed: OSError: too many |")
    assert rows[4].startswith("| dlrover-memory (1); 1 failed: Failed: a race | ") and " never | " in rows[4]


def test_workloads():
    found = workloads.workload("8x256MiB")
    assert (found.ranks, found.bytes_each, found.tensors, found.nbytes) == (8, 256 << 20, 32, 2 << 30)
    assert workloads.workload("1GiB/20000").tensors == 20_000
    for wrong in ("2GB/32", "0x1MiB", "1MiB/0", "1MiB/", ""):
        with pytest.raises(workloads.argparse.ArgumentTypeError):
            workloads.workload(wrong)
