"""What the Python package costs the training thread, beside what it is allowed to cost.

    tools/bench/trainer/run --n 9

JSON lines in the form of ckptd-bench: value and limit are medians taken in turn, ratio is value / limit.

    trainer.step.idle       us that a step without a save is longer with ckptd: step() and the hooks around an
                            optimizer's step. limit: 20 us, the contract
    trainer.step.TENSORS    ms in a step() that saves so many small tensors, nothing eager. limit: 1 ms and 0.8 us a
                            tensor, the contract
    trainer.step.unchecked  ms in a step() that saves --bytes in 32 tensors, without the self-check
    trainer.step.checked    the same with it: what the self-check costs. limit of both: memcpy of the same bytes
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from private_agent import ROOT, PrivateAgent  # noqa: E402

import ckptd  # noqa: E402

IDLE_STEPS = 2000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=9, help="measurements of each (9)")
    parser.add_argument("--tensors", type=int, nargs="*", default=[100, 20_000], help="for trainer.step.TENSORS")
    parser.add_argument("--bytes", type=int, default=256 << 20, help="for the self-check (256 MiB)")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="where storage is made")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="ckptd and libckpt")
    return parser.parse_args()


class Trainer:
    """Parameters with an optimizer that has fired its hooks: everything that it updates is lazy."""

    def __init__(self, socket: str, job: str, tensors: int, elements: int, **options) -> None:
        self.parameters = torch.nn.ParameterDict({f"t{i:06}": torch.randn(elements) for i in range(tensors)})
        self.optimizer = torch.optim.SGD(self.parameters.values(), lr=0.0)
        self.parameters["t000000"].grad = torch.zeros(elements)
        state = {"model": self.parameters, "optim": self.optimizer}
        self.checkpointer = ckptd.Checkpointer(state, job=job, agent=socket, on_error="raise", **options)
        self.checkpointer.restore()
        self.n = 1
        self.update()
        self.checkpointer.step(self.n)  # not saved: the agent prepares memory
        deadline = time.monotonic() + 60
        while not self.checkpointer._session.info().ready and time.monotonic() < deadline:
            time.sleep(0.01)

    def update(self) -> None:
        """One step of the optimizer; what is being captured is captured then."""
        self.optimizer.step()

    def save(self) -> float:
        """Seconds that the thread stood still in a save."""
        self.update()
        self.n += 1
        gc.collect()
        save = self.checkpointer.save(self.n)
        blocked = save.blocked_seconds  # later it has the time at the gate too
        if not save.durable(60):  # the next one finds a free slot
            raise SystemExit(f"step {self.n} is not durable after a minute")
        return blocked

    def close(self) -> None:
        self.checkpointer.close(600)


def seconds_each(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    for _ in range(IDLE_STEPS):
        call()
    return (time.perf_counter() - began) / IDLE_STEPS


def idle(socket: str, count: int) -> list[float]:
    """Seconds a step: with ckptd, less without."""
    found = []
    for index in range(count):
        plain = torch.nn.Linear(8, 8)
        optimizer = torch.optim.SGD(plain.parameters(), lr=0.0)
        for parameter in plain.parameters():
            parameter.grad = torch.zeros_like(parameter)
        without = min(seconds_each(optimizer.step) for _ in range(3))
        trainer = Trainer(socket, f"idle-{index}", 1, 8, every=1 << 40)

        def step(trainer=trainer, optimizer=optimizer) -> None:
            optimizer.step()
            trainer.n += 1
            trainer.checkpointer.step(trainer.n)

        found.append(min(seconds_each(step) for _ in range(3)) - without)
        trainer.close()
    return found


def saves(socket: str, job: str, tensors: int, elements: int, count: int, **options) -> list[float]:
    """Seconds blocked in each save; the first, which prepares memory, is thrown away."""
    trainer = Trainer(socket, job, tensors, elements, **options)
    found = [trainer.save() for _ in range(count + 1)][1:]
    trainer.close()
    return found


def copy_limit(nbytes: int, count: int) -> list[float]:
    source, target = torch.randn(nbytes // 4), torch.empty(nbytes // 4)
    found = []
    for _ in range(count + 1):
        began = time.perf_counter()
        target.copy_(source)
        found.append(time.perf_counter() - began)
    return found[1:]


def line(case: str, values: list[float], limits: list[float], unit: str = "ms") -> None:
    scale = {"ms": 1e3, "us": 1e6}[unit]
    value, limit = statistics.median(values) * scale, statistics.median(limits) * scale
    spread = [float(f"{each * scale:.4g}") for each in (min(values), max(values))]
    numbers = {"value": value, "limit": limit, "ratio": value / limit}
    rounded = {name: float(f"{number:.4g}") for name, number in numbers.items()}
    print(json.dumps({"case": case, "unit": unit, **rounded, "n": len(values), "spread": spread}), flush=True)


def measure(socket: str, args: argparse.Namespace) -> None:
    line("trainer.step.idle", idle(socket, args.n), [20e-6], "us")
    for tensors in args.tensors:
        found = saves(socket, f"tensors-{tensors}", tensors, 64, args.n, selfcheck="off")
        line(f"trainer.step.{tensors}", found, [1e-3 + 0.8e-6 * tensors])
    elements = args.bytes // 32 // 4
    for case, mode in (("unchecked", "off"), ("checked", "always")):
        limits = copy_limit(args.bytes, args.n)
        line(f"trainer.step.{case}", saves(socket, case, 32, elements, args.n, selfcheck=mode), limits)


def main() -> None:
    args = arguments()
    os.environ["CKPTD_LIB"] = str(args.build / "lib" / "libckpt.so")
    torch.set_num_threads(1)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-trainer-", dir=args.dir))
    agent = PrivateAgent(args.build, folder)
    try:
        measure(agent.socket, args)
    finally:
        agent.close()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
