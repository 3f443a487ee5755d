"""What training computes between saves: arithmetic that stays in the cache of its core."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import torch

_SIDE = 128  # three matrices of 64 KiB
_CALIBRATION_SECONDS = 0.5
_CHUNK = 20  # iterations, of 0.1 ms or so


class Compute:
    """`iterations` products of small matrices on each of `threads` threads at once."""

    def __init__(self, iterations: int, threads: int = 1) -> None:
        self._iterations = iterations
        self._matrices = [tuple(torch.rand(_SIDE, _SIDE) for _ in range(3)) for _ in range(threads)]
        self._helpers = ThreadPoolExecutor(threads - 1) if threads > 1 else None

    def run(self) -> None:
        """Returns when all threads are through."""
        mine, *others = self._matrices
        waiting = [self._helpers.submit(self._multiply, *each) for each in others] if self._helpers else []
        self._multiply(*mine)
        for each in waiting:
            each.result()

    def _multiply(self, left: torch.Tensor, right: torch.Tensor, product: torch.Tensor) -> None:
        for _ in range(self._iterations):
            torch.mm(left, right, out=product)


def calibrated(seconds: float) -> int:
    """Iterations that take so long on one thread of this machine when nothing else runs: by the fastest of many."""
    torch.set_num_threads(1)
    compute, fastest = Compute(_CHUNK), float("inf")
    end = time.perf_counter() + _CALIBRATION_SECONDS
    while time.perf_counter() < end:
        began = time.perf_counter()
        compute.run()
        fastest = min(fastest, time.perf_counter() - began)
    return max(round(_CHUNK * seconds / fastest), 1)
