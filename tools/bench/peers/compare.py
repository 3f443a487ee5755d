"""Saving the same state to the same disk beside training, by ckptd and by what people use today, in turn in one run.

    tools/bench/peers/run --out result.json                          # all ways and workloads, 3 rounds: hours
    tools/bench/peers/run --workload 2GiB/32 --n 9 --out result.json
    tools/bench/peers/run --workload 64MiB/32 --compute 0.1 --n 1 --ways ckptd,safetensors     # a trial
    tools/bench/peers/run --workload 2x512MiB --ways plain-copy,ckptd-copies,lm-resiliency-copies    # on another node

A step of training is compute (arithmetic in the cache, on one thread), gate (until the state may change) and an update
of every byte. Each visit is a fresh process with the interpreter of its peer's own environment: it saves once to warm
up, which is thrown away, trains undisturbed, saves, trains undisturbed again; another fresh process restores. Medians
of seconds; of several ranks the slowest counts:

    blocked   training stands still in the call of the save, and for fsync where that is all there is beside the call
    gate      waited for before the state was changed
    captured  from the call until it might have been. / memcpy: of as many bytes on one core, beside the save
    lost      what the steps from the call until durable took, less as many undisturbed ones right before. blocked and
              gate are in it. A/A beside it is the same of undisturbed steps: noise
    in memory from the call until it is where it stays: in another node's memory too, by the ways named copies, of which
              ours has an agent for each half of the ranks. lost is until then, and nothing goes to the disk
    written   from the call until the way says it is there, which may be the page cache
    durable   until it is on the disk: files and folders are fsynced, by the way itself or by us
    restore   into the tensors of a fresh process, caches dropped (as root; else those of the files); each is compared
    / disk    to a sequential O_DIRECT write with fsync, or read, of as many bytes, next to the save (fio if installed)
    plain-copy  is no peer: a copy of the bytes on a second thread. Nothing that captures beside training costs less

A way that fails twice in a row or does not install is a row with the last line of its error. Exit status 1: ckptd did.

    tools/bench/peers/run --device cuda --out DIR

Trains a GPT on this machine's GPU instead, and saves it by ckptd (push and pull), torch.save, safetensors, DCP (thread;
process; process with pinned staging) and torch_checkpointing where it is installed: what each blocks, how much longer a
step with a save is than one without, in turn, with an interval of 95 % and beside A/A, and when it is on the disk. It
is tests/gpu/compare, which takes all other flags: --size middle --windows 30 --seconds 540 --seed N --memory DIR, and
--cpu to try it without a GPU. DIR/summary.md has the table. Exit status 77: there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

from peerbench.ways import STANDARD as STANDARD_WAYS
from peerbench.ways import WAYS
from peerbench.workloads import STANDARD as STANDARD_WORKLOADS
from peerbench.workloads import workload

ROOT = pathlib.Path(__file__).resolve().parents[3]


def _ways(text: str) -> list[str]:
    chosen = list(WAYS) if text == "all" else text.split(",")
    unknown = [way for way in chosen if way not in WAYS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: none of {', '.join(WAYS)}")
    return chosen


def _positive(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r}: at least 1")
    return int(text)


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Ours, and those of tests/gpu/compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--device", choices=["cpu", "cuda"], default="cpu", help="where the state is (cpu)")
    add("--workload", nargs="*", type=workload, metavar="[RANKSx]BYTES[/TENSORS]",
        default=[workload(text) for text in STANDARD_WORKLOADS], help=" ".join(STANDARD_WORKLOADS))  # fmt: skip
    add("--ways", type=_ways, default=list(STANDARD_WAYS), help=f"of {', '.join(WAYS)}; all")
    add("--n", type=_positive, default=3, help="rounds, each with one save of each way (3)")
    add("--compute", type=float, default=1.0, metavar="SECONDS", help="of one step, on one thread (1)")
    add("--threads", type=_positive, default=1, help="that compute (1)")
    add("--deadline", type=float, default=300.0, metavar="SECONDS", help="for one visit; then it hangs (300)")
    add("--disk", choices=["auto", "fio", "own"], default="auto", help="what measures the disk's limit")
    add("--caches", choices=["system", "files"], default="system", help="dropped before a restore")
    add("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="on the disk to measure")
    add("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="ckptd and libckpt")
    add("--out", type=pathlib.Path, help="file for the JSON. --device cuda: new folder for what is found (in --dir)")
    args, others = parser.parse_known_args()
    if others and args.device == "cpu":
        parser.error(f"--device cpu has no {' '.join(others)}")
    return args, others


def compare_on_gpu(args: argparse.Namespace, others: list[str]) -> int:
    """Exit status of tests/gpu/compare."""
    out = args.out or pathlib.Path(tempfile.mkdtemp(prefix="ckptd-compare-", dir=args.dir))
    command = [sys.executable, ROOT / "tests" / "gpu" / "compare", "--out", out, *others]
    status = subprocess.call(command, env={**os.environ, "CKPTD_BUILD": str(args.build.absolute())})
    print(f"{out}/summary.md")
    return status


def compare(args: argparse.Namespace, folder: pathlib.Path) -> int:
    """On the CPU. Exit status."""
    from peerbench.compute import calibrated
    from peerbench.limits import Disk
    from peerbench.rounds import Run
    from peerbench.table import table
    from peerbench.visit import Settings

    tool = Disk(folder, 1 << 20, args.disk).tool
    settings = Settings(folder, args.build.absolute(), calibrated(args.compute), args.threads, args.deadline, tool,
                        args.caches == "system")  # fmt: skip
    run = Run(args.ways, args.n, settings, args.out)
    for each in args.workload:
        found = run.measure(each, lambda line: print(line, file=sys.stderr, flush=True))
        print("\n".join(["", *table(found, tool)]), flush=True)
    run.write(complete=True)
    failed = [way for one in run.document["workloads"] for way, result in one["ways"].items() if result["error"]]
    return int(any(WAYS[way].ours for way in failed))


def _end(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def main() -> int:
    args, others = arguments()
    if args.device == "cuda":
        return compare_on_gpu(args, others)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    os.environ["CKPTD_LIB"] = str(args.build.absolute() / "lib" / "libckpt.so")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-peers-", dir=args.dir))
    try:
        return compare(args, folder)
    except KeyboardInterrupt:
        return 130
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
