"""tools/bench/scale as a user calls it, at tiny sizes, and with a ckptd-bench of which it is known what it says."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ET

import pytest
from conftest import BUILD, ROOT, require_build

SCALE = ROOT / "tools" / "bench" / "scale"
sys.path.append(str(SCALE))

from scalebench import charts, document, room  # noqa: E402
from scalebench.bench import Help, read_help, read_lines  # noqa: E402
from scalebench.series import GIB, KIB, MIB, SERIES, Point, Size, plan, told  # noqa: E402
from scalebench.svg import Chart, Curve, Mark, horizontal, svg, vertical  # noqa: E402

HELP = """usage: ckptd-bench CASE... [flags]

Cases (ours; the limit):
  save.blocked     ms inside ckpt_save; 1 ms + 0.8 us a tensor
  save.captured.stays the same with CKPT_STAYS
  restore.region   GB/s of a restore; memcpy

Flags:
  --bytes SIZE     state of one rank
                   and more of it
  --tensors N      tensors
  --ranks N        trainers
"""
FAKE = f"""#!/bin/sh
[ "$1" = --help ] && cat <<'END' && exit 0
{HELP}END
echo "$@" >>"$(dirname "$0")/../calls"
"""
GOOD = {"case": "save.blocked", "value": 2.0, "unit": "ms", "limit": 17, "ratio": 0.118, "n": 5, "spread": [1.0, 4.0],
        "limit_spread": [16, 18], "what": "1 ms"}  # fmt: skip


def start(tmp_path, build, *arguments):
    """Everything that it writes lies below tmp_path, or in folders of its own on /dev/shm."""
    (tmp_path / "disk").mkdir(exist_ok=True)
    command = [SCALE / "run", "--out", tmp_path / "out", "--build", build, "--dir", tmp_path / "disk", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run(tmp_path, build, *arguments):
    """Exit status, points as they were told, what was said beside."""
    process = start(tmp_path, build, *arguments)
    told_lines, said = process.communicate(timeout=250)
    assert list((tmp_path / "disk").iterdir()) == [], "something is left behind"
    return process.returncode, [json.loads(line) for line in told_lines.splitlines()], said


def fake(tmp_path, script):
    """A build tree whose ckptd-bench is `script`, behind its --help."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "ckptd-bench"
    program.write_text(FAKE + script + "\n")
    program.chmod(0o755)
    return tmp_path


def read(tmp_path):
    return json.loads((tmp_path / "out" / "scale.json").read_text())


def test_a_tiny_run(tmp_path):
    require_build()
    status, points, said = run(tmp_path, BUILD, "--trial", "--series", "tensors,ranks", "--cases",
                               "save.blocked,save.captured")  # fmt: skip
    assert status == 0, said
    assert [(point["case"], point["value"]) for point in points] == [
        *(("save.blocked", value) for value in (100, 1000, 10_000)), *(("save.captured", value) for value in (1, 2, 4))
    ]  # fmt: skip
    for point in points:
        line = point["line"]
        assert line["case"] == point["case"] and line["n"] == 1 and line["value"] > 0 < line["limit"]
    found = read(tmp_path)
    assert found["points"] == points and found["complete"] and found["machine"]["cores"] == os.cpu_count()
    assert found["commit"] and found["began"].endswith("+00:00")
    pictures = sorted(path.name for path in (tmp_path / "out").glob("*.svg"))
    assert pictures == ["ranks-save.captured.svg", "tensors-save.blocked.svg"]


def test_the_same_document_gives_the_same_pictures(tmp_path):
    build = fake(tmp_path, f"echo '{json.dumps(GOOD)}'")
    assert run(tmp_path, build, "--cases", "save.blocked", "--trial")[0] == 0
    [picture] = (tmp_path / "out").glob("*.svg")
    before = picture.read_bytes()
    picture.unlink()
    assert run(tmp_path, build, "--draw")[0] == 0 and picture.read_bytes() == before
    assert b"a trial, no figure" in before and len(before) < 60_000
    status, _, said = run(tmp_path, build, "--trial")
    assert status == 2 and "scale.json is there already" in said, "figures are not written over"


def test_what_is_not_there_is_left_out_and_told(tmp_path):
    build = fake(tmp_path, f"echo '{json.dumps(GOOD)}'")
    status, points, said = run(tmp_path, build, "--trial")
    assert status == 0 and {point["case"] for point in points} == {"save.blocked", "restore.region"}
    assert said.count("tensors: register is left out: this ckptd-bench has no case register\n") == 1
    assert said.count("chunk: restore.region is left out: this ckptd-bench has no flag --chunk\n") == 1
    assert "ranks: commit is left out: this ckptd-bench has no case commit" in read(tmp_path)["left_out"]
    assert (tmp_path / "calls").read_text().splitlines()[0].startswith(
        "save.blocked --bytes 1048576 --tensors 100 --ranks 1 --n 1 --dir ")  # fmt: skip


def test_a_point_that_fails_or_is_skipped_does_not_end_the_run(tmp_path):
    script = f"""case $5 in
  100) echo 'ckptd-bench: save.blocked: the disk is full' >&2; echo 'next: empty it' >&2; exit 1 ;;
  1000) echo '{{"case":"save.blocked","skipped":"needs more"}}' ;;
  *) echo '{json.dumps(GOOD)}' ;;
esac"""
    build = fake(tmp_path, script)
    status, points, _ = run(tmp_path, build, "--trial", "--cases", "save.blocked")
    assert status == 1 and [point["value"] for point in points] == [100, 1000, 10_000]
    assert points[0]["error"] == "save.blocked: the disk is full"
    assert points[1]["skipped"] == "needs more" and points[2]["line"] == GOOD
    [picture] = (tmp_path / "out").glob("*.svg")
    words = [text.text for text in ET.parse(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert "100 failed: save.blocked: the disk is full" in words and "1,000 skipped: needs more" in words


HANGS = 'sleep 1000 & echo $! >>"$(dirname "$0")/../hanging"; wait'


def test_one_that_hangs_is_ended_with_what_it_started(tmp_path):
    status, points, _ = run(tmp_path, fake(tmp_path, HANGS), "--trial", "--cases", "save.blocked", "--deadline", "0.5")
    assert status == 1 and [point["error"] for point in points] == ["not done within 0.5 s"] * 3
    hanging = (tmp_path / "hanging").read_text().split()
    assert len(hanging) == 3 and all(gone(pid) for pid in hanging), "what it started runs on"


@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_it_leaves_nothing_when_it_is_stopped(tmp_path, number, status):
    process = start(tmp_path, fake(tmp_path, HANGS), "--trial", "--cases", "save.blocked")
    deadline = time.monotonic() + 60
    while not (tmp_path / "hanging").exists() or not (tmp_path / "hanging").read_text().strip():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == status and list((tmp_path / "disk").iterdir()) == []
    assert gone((tmp_path / "hanging").read_text().strip())


def gone(pid):
    """Nobody may have reaped it yet."""
    stat = pathlib.Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] in "ZX"


def test_what_cannot_begin_is_told(tmp_path):
    status, _, said = run(tmp_path, tmp_path / "nowhere")
    assert status == 2 and "there is no" in said and "tools/build" in said
    status, _, said = run(tmp_path, tmp_path, "--region", tmp_path / "nowhere")
    assert status == 2 and "there is no folder" in said and "--region" in said
    build = fake(tmp_path, "")
    (build / "bin" / "ckptd-bench").write_text("#!/bin/sh\necho 'no libckpt.so' >&2; exit 127\n")
    status, _, said = run(tmp_path, build)
    assert status == 2 and "lists no cases: no libckpt.so" in said and not (tmp_path / "out" / "scale.json").exists()


def test_the_plan():
    points = plan(SERIES)
    of = {name: [point for point in points if point.series == name] for name in SERIES}
    assert {point.size.bytes_each for point in of["tensors"]} == {256 * MIB}
    assert max(point.size.tensors for point in of["tensors"]) == 10**6 <= 1 << 20
    shared = plan(["ranks"], ["flush.durable"])
    assert {point.size.nbytes for point in shared} == {2 * GIB}
    assert {point.size.ranks * point.size.tensors for point in shared} == {1024}
    commits = plan(["ranks"], ["commit"])
    assert [point.value for point in commits] == [1, 2, 4, 8, 16, 32, 64]
    assert {point.size.bytes_each for point in commits} == {64 * KIB}, "more would measure the flush"
    assert [told(point.size.bytes_each) for point in plan(["bytes"], ["restore.region"])] == [
        "64 MiB", "256 MiB", "1 GiB", "4 GiB", "16 GiB"]  # fmt: skip
    chunks = [point.size.chunk for point in plan(["chunk"], ["restore.region"])]
    assert (chunks[0], chunks[-1], len(chunks)) == (64 * KIB, 64 * MIB, 6)
    assert len({(point.series, point.case, point.value) for point in points}) == len(points)


def test_a_trial_is_small_and_says_true_values():
    points = plan(SERIES, trial=True)
    assert max(point.size.nbytes for point in points) <= 8 * MIB
    assert all(point.value == point.size.bytes_each for point in points if point.series == "bytes")
    assert all(point.size.bytes_each >= 8 * point.size.tensors for point in points), "a tensor has a word at least"


def test_flags():
    assert Size(64, 2, ranks=3).flags() == ["--bytes", "64", "--tensors", "2", "--ranks", "3"]
    assert Size(64, 2, chunk=65536).flags()[-2:] == ["--chunk", "65536"]


def test_room():
    small, large = (room.needed(Size(nbytes, 1024)) for nbytes in (64 * MIB, 16 * GIB))
    there = room.Room(memory=24 * GIB, region=24 * GIB, disk=60 * GIB)
    assert room.lacks(small, there) == ""
    assert room.lacks(large, there) == "needs 65 GiB of memory, 24 GiB are free"
    assert "of disk, 1 GiB are free" in room.lacks(room.needed(Size(GIB, 1)), room.Room(24 * GIB, 24 * GIB, GIB))
    assert "the region's tmpfs, 64 MiB" in room.lacks(small, room.Room(24 * GIB, 64 * MIB, 60 * GIB))


def test_help():
    found = read_help(HELP)
    assert found.cases["restore.region"] == "GB/s of a restore; memcpy" and len(found.cases) == 3
    assert found.cases["save.captured.stays"] == "the same with CKPT_STAYS"
    assert found.flags == {"--bytes", "--tensors", "--ranks"}
    assert Help({}, found.flags).lacks(Point("ranks", "commit", 1, Size(1, 1))) == "this ckptd-bench has no case commit"


def test_lines():
    line = json.dumps(GOOD)
    assert read_lines(f"{line}\n{line}\n", "", 0) == ([GOOD, GOOD], "")
    skipped = {"case": "adopt", "skipped": "why"}
    assert read_lines(json.dumps(skipped), "", 0) == ([skipped], "")
    assert read_lines(line, "ckptd-bench: adopt: full\nnext: empty it\n", 1) == ([GOOD], "adopt: full")
    assert read_lines("", "", -11) == ([], "status -11 and no word why")
    assert read_lines("", "", 0)[1], "a run that says nothing has measured nothing"
    for bad in ("nonsense", "3", '{"case":"x"}', '{"case":'):
        assert read_lines(f"{line}\n{bad}\n", "", 0) == ([GOOD], f"not a line of ckptd-bench: {bad}")


def test_the_document_is_whole_after_every_point(tmp_path):
    path = tmp_path / "scale.json"
    found = document.Document(path, {"began": "now"})
    found.add(Point("ranks", "commit", 2, Size(64, 2, ranks=2)), took=1.5, line=GOOD)
    first = json.loads(path.read_text())
    assert not first["complete"] and first["points"][0]["line"] == GOOD and first["points"][0]["ranks"] == 2
    found.add(Point("ranks", "commit", 4, Size(64, 2, ranks=4)), error='a "quoted" word')
    found.write(complete=True)
    assert json.loads(path.read_text()) == found.found and len(path.read_text().splitlines()) < 20


def chart(values, spread=1.0):
    marks = [Mark(x, y, y / spread, y * spread) for x, y in values]
    return Chart("a < b & c", "x", "GB/s", [(x, f"{x:,}") for x, _ in values], [Curve("ckptd", "#1f5fa8", marks)])


def circles(text):
    root = ET.fromstring(text)
    return [(float(each.get("cx")), float(each.get("cy"))) for each in root.iter("{http://www.w3.org/2000/svg}circle")]


def test_a_value_is_where_it_belongs():
    drawn = chart([(1, 2.0), (10, 4.0), (100, 8.0)])
    places = circles(svg(drawn))
    assert places[1][0] == pytest.approx((places[0][0] + places[2][0]) / 2, abs=0.2), "logarithmic across"
    axis, ticks = vertical(drawn)
    assert ticks[0] == 0 and ticks[-1] >= 8 and axis.at(ticks[-1]) < axis.at(0)
    height = axis.at(0)
    up = [height - y for _, y in places]
    assert up[1] == pytest.approx(2 * up[0], abs=0.2) and up[2] == pytest.approx(4 * up[0], abs=0.2)
    across = horizontal(drawn)
    assert across.start < places[0][0] < places[2][0] < across.end


def test_several_magnitudes_are_drawn_logarithmically():
    axis, ticks = vertical(chart([(1, 0.05), (10, 1.0), (100, 80.0)]))
    assert ticks == [0.01, 0.1, 1.0, 10.0, 100.0]
    assert axis.at(1.0) == pytest.approx((axis.at(0.1) + axis.at(10.0)) / 2)
    assert not vertical(chart([(1, 0.0), (10, 100.0)]))[0].logarithmic, "zero has no logarithm"


@pytest.mark.parametrize("most", [0.037, 0.99, 1.0, 2.0, 7.3, 19.9, 333.0, 1e6])
def test_ticks_are_few_and_round_and_reach_the_greatest(most):
    axis, ticks = vertical(chart([(1, most)]))
    assert 4 <= len(ticks) <= 12 and ticks[-1] >= most * (1 - 1e-9) and axis.at(most) >= axis.end - 1e-6


def test_spread_and_words_are_well_formed():
    drawn = chart([(1, 2.0)], spread=2.0)
    root = ET.fromstring(svg(drawn))
    assert root.find("{http://www.w3.org/2000/svg}title").text == "a < b & c"
    axis, _ = vertical(drawn)
    paths = [each.get("d") for each in root.iter("{http://www.w3.org/2000/svg}path")]
    assert any(f" {axis.at(1.0):.1f}V{axis.at(4.0):.1f}" in path for path in paths), "from the least to the greatest"
    assert ET.fromstring(svg(Chart("nothing", "x", "y", [(1, "1")], []))) is not None


def test_charts_of_a_document():
    machine = {"cpu": "EPYC", "cores": 2, "memory": 24 * GIB, "kernel": "6.18-x"}
    facts = {"machine": machine, "began": "2026-11-23T09:00:00+00:00", "commit": "abc", "trial": False}
    entry = {"series": "tensors", "case": "save.blocked", "bytes_each": 256 * MIB, "tensors": 1, "ranks": 1}
    first = {**GOOD, "what": "1 ms for each of 100; ours: slow", "value": 1.5, "spread": [1, 2]}
    points = [{**entry, "value": 1000, "line": {**GOOD, "what": "1 ms for each of 1000; ours: fast"}},
              {**entry, "value": 100, "line": first},
              {**entry, "value": 10_000, "error": "boom"}]  # fmt: skip
    found = charts.charts({**facts, "points": points})
    assert list(found) == ["tensors-save.blocked"]
    drawn = found["tensors-save.blocked"]
    assert drawn.title.startswith("save.blocked: ") and drawn.y_label == "ms"
    assert drawn.x_label == "tensors of one rank, 256 MiB together"
    limit, ours = drawn.curves
    assert limit.name == "limit: 1 ms for each of N" and [mark.x for mark in ours.marks] == [100, 1000]
    assert ours.marks[0] == Mark(100, 1.5, 1, 2) and limit.marks[0] == Mark(100, 17, 16, 18)
    assert drawn.notes == ["10,000 failed: boom", "EPYC, 2 cores, 24 GiB, Linux 6.18; 2026-11-23; commit abc"]
    del points[0]["line"]["limit_spread"]  # as ckptd-bench said it before
    assert charts.charts({**facts, "points": points})["tensors-save.blocked"].curves[0].marks[1].low == 17
