"""A warm process that has imported torch and started no thread; it forks one child for each trial.

Importing torch takes longer than ten trials. Requests are lines of JSON on stdin; the answer to each is the child's
wait status. Threads that may not be carried over a fork (OpenMP, OpenBLAS, autograd) are started in the children only.
"""

import importlib
import json
import os
import signal
import sys
from collections.abc import Callable

import torch

from . import all_rows, rows, trial

_SECONDS = 120  # a trial that hangs is killed by its alarm


def serve() -> None:
    """Until stdin ends."""
    torch.set_num_threads(1)
    warm_up()
    for line in sys.stdin:
        request = json.loads(line)
        for name in all_rows.ROWS[request["row"]].imports:
            importlib.import_module(name)
        assert len(os.listdir("/proc/self/task")) == 1, "a thread before a fork"
        child = os.fork()
        if child == 0:
            signal.alarm(_SECONDS)
            run(request)
        print(os.waitpid(child, 0)[1], flush=True)


def warm_up() -> None:
    """One step of one row, and torch.compile: torch imports half of itself when it is first used."""
    loop = all_rows.ROWS["dropout"].build()
    loop.train(next(iter(rows.shuffled())))
    for name in ("torch._functorch.aot_autograd", "torch._inductor.compile_fx"):
        importlib.import_module(name)


def run(request: dict, trial_of: Callable[[dict], None] = trial.run) -> None:
    """In the child; does not return."""
    output = os.open(request["journal"] + ".out", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request["environment"])
    code = 1
    try:
        trial_of(request)
        code = 0
    finally:
        sys.stdout.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
