"""How what ckptd costs grows with tensors, ranks, bytes and chunks: ckptd-bench over series of sizes.

    tools/bench/scale/run --out DIR                          # all series: 20 minutes or so
    tools/bench/scale/run --out DIR --trial                  # tiny states, a minute: does it work here?
    tools/bench/scale/run --out DIR --series bytes --cases restore.region,restore.storage --n 9
    tools/bench/scale/run --out DIR --draw                   # the pictures again, from DIR/scale.json

Every point is a run of ckptd-bench of its own: a fresh agent and a fresh job, ours and the limit in turn. Points are
told as JSON lines, and written into DIR/scale.json after each one, with machine, date and commit; at the end, or when
it is stopped, DIR/SERIES-CASE.svg has ckptd and its limit, medians and the least and the greatest value.

A point for which memory or disk have no room, or whose case this ckptd-bench does not have, is skipped and says why;
one that fails does not end the run. Nothing else should run on the machine: compare "load" in scale.json.

Exit status: 0, every point was measured or skipped; 1, one failed; 2, usage; 130, interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from scalebench import charts, room
from scalebench.bench import Bench, Unusable
from scalebench.document import Document, commit
from scalebench.series import SERIES, Point, plan, told

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from machine import machine, now  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[3]
NAME = "scale.json"
CASES = sorted({case for series in SERIES.values() for case in series.cases})


def _some_of(known: list[str]) -> Callable[[str], list[str]]:
    def chosen(text: str) -> list[str]:
        unknown = [word for word in text.split(",") if word not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(known)}")
        return text.split(",")

    return chosen


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: at least 1")
    return int(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/bench/scale/run", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    build = os.environ.get("CKPTD_BUILD") or ROOT / "build" / "release"
    add("--out", type=pathlib.Path, required=True, metavar="DIR", help="for scale.json and the pictures")
    add("--series", type=_some_of(list(SERIES)), default=list(SERIES), help=f"of {','.join(SERIES)}")
    add("--cases", type=_some_of(CASES), help=f"of {','.join(CASES)}")
    add("--n", type=_positive, help="measurements of each point (5; --trial: 1)")
    add("--trial", action="store_true", help="the first three points of each series, a 256th of the bytes")
    add("--draw", action="store_true", help="measures nothing, draws what DIR/scale.json says")
    add("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="on the disk to measure (/var/tmp)")
    add("--region", type=pathlib.Path, default=pathlib.Path("/dev/shm"), help="on the tmpfs to use (/dev/shm)")
    add("--build", type=pathlib.Path, default=pathlib.Path(build), help="ckptd and ckptd-bench; else $CKPTD_BUILD")
    add("--deadline", type=float, default=900.0, metavar="SECONDS", help="for one point; then it hangs (900)")
    return parser.parse_args()


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


class Run:
    """Measures point after point into a document."""

    def __init__(self, args: argparse.Namespace, folder: pathlib.Path, region: pathlib.Path) -> None:
        self._folder, self._region = folder, region
        self._rounds = args.n or (1 if args.trial else 5)
        self._bench = Bench(args.build.absolute(), folder, region, args.deadline)
        self._points = plan(args.series, args.cases, args.trial)
        self.failed = False
        facts = {"began": now(), "commit": commit(ROOT), "trial": args.trial, "machine": machine(folder),
                 "rounds": self._rounds, "left_out": []}  # fmt: skip
        self.document = Document(args.out / NAME, facts)

    def measure(self) -> None:
        """All of them."""
        for number, point in enumerate(self._points, 1):
            lacking = self._bench.help.lacks(point)
            if lacking:
                self._leave_out(f"{point.series}: {point.case} is left out: {lacking}")
                continue
            value = told(point.value) if SERIES[point.series].in_bytes else point.value
            _say(f"{number} of {len(self._points)}: {point.series} {value}: {point.case}")
            self._measure(point)
        self.document.write(complete=True)

    def _measure(self, point: Point) -> None:
        lacking = room.lacks(room.needed(point.size), room.free(self._folder, self._region))
        if lacking:
            self._add(point, skipped=lacking)
            return
        began = time.monotonic()
        lines, error = self._bench.run(point, self._rounds)
        took = round(time.monotonic() - began, 1)
        for line in lines:
            self._add(point, took=took, **({"skipped": line["skipped"]} if "skipped" in line else {"line": line}))
        if error:
            self.failed = True
            self._add(point, took=took, error=error)

    def _add(self, point: Point, **what: Any) -> None:
        print(json.dumps(self.document.add(point, **what)), flush=True)

    def _leave_out(self, words: str) -> None:
        """Told once, whatever the number of points."""
        if words not in self.document.found["left_out"]:
            self.document.found["left_out"].append(words)
            _say(words)


def scale(args: argparse.Namespace) -> int:
    """Exit status. Whatever a run leaves behind goes with its two folders."""
    folders = [pathlib.Path(tempfile.mkdtemp(prefix="ckptd-scale-", dir=each)) for each in (args.dir, args.region)]
    try:
        run = Run(args, *folders)
        try:
            run.measure()
        finally:
            _draw(run.document.found, args.out)
        return int(run.failed)
    except Unusable as refused:
        _say(f"tools/bench/scale/run: {refused}")
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        for folder in folders:
            shutil.rmtree(folder, ignore_errors=True)


def _draw(document: dict[str, Any], folder: pathlib.Path) -> None:
    for path in charts.draw(document, folder):
        _say(str(path))


def _refusal(args: argparse.Namespace) -> str:
    """Why it does not begin; "": it does."""
    there = (args.out / NAME).exists()
    if args.draw:
        return "" if there else f"there is no {args.out / NAME} to draw"
    if there:
        return f"{args.out / NAME} is there already: another --out, --draw to draw it again, or remove it"
    missing = [each for each in (args.dir, args.region) if not each.is_dir()]
    if missing:
        return f"there is no folder {missing[0]}: --dir, --region"
    program = args.build / "bin" / "ckptd-bench"
    return "" if os.access(program, os.X_OK) else f"there is no {program}: tools/build, or --build"


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    args = arguments()
    refusal = _refusal(args)
    if refusal:
        _say(f"tools/bench/scale/run: {refusal}")
        return 2
    if args.draw:
        _draw(json.loads((args.out / NAME).read_text()), args.out)
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what runs behind it with SIGINT ignored
    args.out.mkdir(parents=True, exist_ok=True)
    return scale(args)


if __name__ == "__main__":
    sys.exit(main())
