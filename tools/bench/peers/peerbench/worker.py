"""One rank of a job, told what to do by lines of JSON: `python -m peerbench.worker '{...}'`.

Answers are lines of JSON too, on the standard output that it was started with; what a peer prints goes to standard
error. {"error": ...} is an exception's last line. The process ends with its driver.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import pathlib
import signal
import sys
import time
import traceback
import warnings
from typing import Any

_PR_SET_PDEATHSIG = 1


class Worker:
    """spec: way, rank, ranks, folder, socket, ports, tensors, elements, iterations, threads, restoring."""

    def __init__(self, spec: dict[str, Any]) -> None:
        from .state import State
        from .ways import WAYS

        self._spec = spec
        kind = WAYS[spec["way"]].adapter()
        group = _join(spec, kind.group)
        self._state = State(spec["rank"], spec["tensors"], spec["elements"])
        self._state.clear() if spec["restoring"] else self._state.fill(0)
        self._adapter = kind(self._state, self._place())
        self._loop = self._make_loop(group)
        self.version = _version(kind.distribution)

    def _place(self) -> Any:
        from .adapters.base import Place

        spec = self._spec
        folder = pathlib.Path(spec["folder"])
        return Place(spec["rank"], spec["ranks"], folder, spec["socket"], spec["ports"][1], spec["restoring"])

    def _make_loop(self, group: Any) -> Any:
        from .compute import Compute
        from .loop import Loop

        compute = Compute(self._spec["iterations"], self._spec["threads"])
        return Loop(self._state, self._adapter, compute, group)

    def warm(self) -> dict[str, Any]:
        """The first save, which makes processes and memory: nobody counts it."""
        self._loop.undisturbed(1)
        return {"steps": self._loop.save()["steps"]}

    def measure(self, steps: int) -> dict[str, Any]:
        """A save between so many undisturbed steps before (`before`: mean seconds of one) and after it."""
        before = self._loop.undisturbed(steps)
        found = self._loop.save()
        return {**found, "before": before, "after": self._loop.undisturbed(steps)}

    def restore(self, saved: int) -> dict[str, Any]:
        """Seconds until the state is as it was after `saved` updates. wrong: the first tensor that is not, or ""."""
        began = time.perf_counter()
        self._adapter.restore(saved)
        spent = time.perf_counter() - began
        return {"restore": spent, "wrong": self._state.differs(saved)}

    def close(self) -> dict[str, Any]:
        self._adapter.close()
        return {}


def _join(spec: dict[str, Any], wanted: bool) -> Any:
    """Joins the ranks of the job. The group of the loop: not the peer's, as a peer may use that on a thread."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    if not wanted and spec["ranks"] == 1:
        return None
    dist.init_process_group("gloo")
    return dist.new_group(backend="gloo") if spec["ranks"] > 1 else None


def _version(distribution: str) -> str:
    if distribution == "ckptd":
        import ckptd

        return ckptd.__version__
    return importlib.metadata.version(distribution)


def _answer(to: Any, what: dict[str, Any]) -> None:
    to.write(json.dumps(what) + "\n")
    to.flush()


def _last_line(error: BaseException) -> str:
    """As Python would print it, without what led there."""
    return traceback.format_exception_only(error)[-1].strip().splitlines()[-1]


def main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    spec = json.loads(sys.argv[1])
    try:
        worker = Worker(spec)
        _answer(answers, {"version": worker.version})
        for line in sys.stdin:
            order = json.loads(line)
            _answer(answers, getattr(worker, order.pop("do"))(**order))
    except BaseException as error:
        traceback.print_exc()
        _answer(answers, {"error": _last_line(error)})
    sys.stderr.flush()
    os._exit(0)  # the driver ends what a peer left; nobody waits for a peer's threads


if __name__ == "__main__":
    main()
