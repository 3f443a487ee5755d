"""The command line: runs parts in their order, each within its seconds, and writes what was found."""

from __future__ import annotations

import argparse
import pathlib
import random
import sys
import time
from collections.abc import Callable

from child import OutOfTime
from driver import NoDriver
from results import FAILED, Part, Results, Skip, read
from sizes import SIZES
from summary import figures, ways, write

NO_DRIVER = 77
Parts = dict[str, tuple[Callable[[Part], None], float]]  # by name: what asks, and its seconds


def _options(parts: Parts, description: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="folder for what is found; on a disk")
    parser.add_argument("--part", action="append", choices=parts, help="only these, in the order of the parts")
    parser.add_argument("--seconds", type=float, help="for each part, instead of its own budget")
    torch = parser.add_argument_group("parts that train")
    torch.add_argument("--size", choices=SIZES, help="of the model, instead of the part's own")
    torch.add_argument("--memory", type=pathlib.Path, help="folder on a tmpfs for the agent (/dev/shm)")
    torch.add_argument("--kills", type=int, default=100, help="at most so many in each story")
    torch.add_argument("--windows", type=int, default=30, help="of each kind in `bench`, and of each way in `compare`")
    torch.add_argument("--backend", action="append", help="of torch.compile, instead of those that are tried")
    torch.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="of what is drawn; else random")
    torch.add_argument("--cpu", action="store_true", help="to try the scripts: says nothing of a GPU, exit status 77")
    return parser.parse_args()


def _run(name: str, ask: Callable[[Part], None], results: Results, seconds: float, log: object,
         options: argparse.Namespace) -> None:  # fmt: skip
    part = Part(name, results, seconds, log, options)
    try:
        ask(part)
    except Skip as skip:
        part.skip("the part itself", str(skip))
    except NoDriver as error:
        part.skip("the part itself", f"no driver: {error}")
    except OutOfTime:
        part.skip("the part itself", "out of time")
    except Exception as error:  # the next part may still be asked
        results.add(name, "the part itself", FAILED, {}, f"{type(error).__name__}: {error}")


def main(parts: Parts, description: str) -> int:
    """Exit status: 0, nothing failed; 1, something did; 77, no driver answered."""
    options = _options(parts, description)
    options.out = options.out.absolute()
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        results = Results(options.out / "results.jsonl")
    except FileExistsError as error:
        sys.exit(f"{error.filename} is there already: another folder for another run")
    began = time.time()
    wanted = [name for name in parts if not options.part or name in options.part]
    with (options.out / "children.log").open("ab") as log:
        for name in wanted:
            ask, seconds = parts[name]
            _run(name, ask, results, options.seconds or seconds, log, options)
    command = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
    findings = read(options.out / "results.jsonl")
    write(options.out / "summary.md", findings, began, command)
    print("\n".join([*figures(findings), *ways(findings)]))
    if FAILED in results.statuses:
        return 1
    if results.driver_answered or wanted == ["probe"]:
        return 0
    print("No CUDA driver answered: this says nothing about a GPU. Needed: libcuda.so.1 of driver 525 or later.")
    return NO_DRIVER
