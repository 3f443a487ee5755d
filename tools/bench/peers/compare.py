"""Saving the same state to the same disk with ckptd and with what people use today, in turn in one run.

    tools/bench/peers/run --bytes 1GiB --tensors 400 --n 5 --dir /var/tmp

For each way two JSON lines in the form of ckptd-bench (value and limit are medians, ratio is value / limit):

    peer.WAY.blocked   ms that training stands still in the call. ckptd: `step()`; beside it peer.ckptd.captured, the
                       time until an optimizer may change the state, which a real step spends in forward and backward.
                       limit: a copy of the state in memory
    peer.WAY.durable   ms from the call until the bytes are on the disk (fsync of file and folder where the way has
                       none of its own). limit: one plain O_DIRECT sequential write with fsync

ckptd_dcp_save, ckptd_dcp_async and ckptd_dcp_stager are dcp.save and dcp.async_save with ckptd.torch.dcp.StorageWriter,
the last with its Stager: peer.ckptd_dcp_stager.captured is the time until an optimizer may change the state.

The first round is thrown away: DCP starts its process in it, ckptd prepares its memory.

    tools/bench/peers/run --device cuda --out DIR

Trains a GPT on this machine's GPU instead, and saves it by ckptd (push and pull), torch.save, safetensors, DCP (thread;
process; process with pinned staging) and torch_checkpointing where it is installed: what each blocks, how much longer a
step with a save is than one without, in turn, with an interval of 95 % and beside A/A, and when it is on the disk. It
is tests/gpu/compare, which takes all other flags: --size middle --windows 30 --seconds 540 --seed N --memory DIR, and
--cpu to try it without a GPU. DIR/summary.md has the table. Exit status 77: there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
from private_agent import ROOT, PrivateAgent  # noqa: E402

import ckptd  # noqa: E402
from ckptd.torch.dcp import Stager, StorageWriter  # noqa: E402

BLOCK = 8 << 20


def size(text: str) -> int:
    """256MiB, 1GiB or a number."""
    found = re.fullmatch(r"(\d+)\s*([KMG]iB)?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: a size such as 256MiB or 1GiB")
    return int(found[1]) << {None: 0, "KiB": 10, "MiB": 20, "GiB": 30}[found[2]]


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """Ours, and those of tests/gpu/compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="where the state is (cpu)")
    parser.add_argument("--bytes", type=size, default=1 << 30, help="of the state (1GiB)")
    parser.add_argument("--tensors", type=int, default=400)
    parser.add_argument("--n", type=int, default=5, help="measurements of each way (5)")
    parser.add_argument("--dir", type=pathlib.Path, default=pathlib.Path("/var/tmp"), help="on the disk to measure")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release", help="ckptd and libckpt")
    parser.add_argument("--out", type=pathlib.Path, help="--device cuda: new folder for what is found (in --dir)")
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


def fsync(path: pathlib.Path) -> None:
    """Of a file, and of everything in a folder."""
    for each in [path, *path.rglob("*")] if path.is_dir() else [path, path.parent]:
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


class Peers:
    """Each method takes a path that does not exist and gives (seconds blocked, seconds until durable)."""

    def __init__(self, state: dict[str, torch.Tensor]) -> None:
        self._state = state

    def torch_save(self, path: pathlib.Path) -> tuple[float, float]:
        return self._files(lambda: torch.save(self._state, path), path)

    def safetensors(self, path: pathlib.Path) -> tuple[float, float]:
        return self._files(lambda: save_file(self._state, path), path)

    def dcp_save(self, path: pathlib.Path) -> tuple[float, float]:
        return self._files(lambda: dcp.save(self._state, checkpoint_id=path), path)

    def dcp_async_thread(self, path: pathlib.Path) -> tuple[float, float]:
        return self._async(path, AsyncCheckpointerType.THREAD)

    def dcp_async_process(self, path: pathlib.Path) -> tuple[float, float]:
        return self._async(path, AsyncCheckpointerType.PROCESS)

    def _files(self, write, path: pathlib.Path) -> tuple[float, float]:
        began = time.perf_counter()
        write()
        blocked = time.perf_counter() - began
        fsync(path)
        return blocked, time.perf_counter() - began

    def _async(self, path: pathlib.Path, kind: AsyncCheckpointerType) -> tuple[float, float]:
        began = time.perf_counter()
        future = dcp.async_save(self._state, checkpoint_id=path, async_checkpointer_type=kind)
        blocked = time.perf_counter() - began
        future.result()
        fsync(path)
        return blocked, time.perf_counter() - began


class Ours:
    """ckptd with an agent of its own; storage on the disk that the others write to."""

    def __init__(self, parameters: torch.nn.ParameterDict, folder: pathlib.Path, build: pathlib.Path) -> None:
        self._agent = PrivateAgent(build, folder)
        optimizer = torch.optim.SGD(parameters.values(), lr=0.0)
        self._checkpointer = ckptd.Checkpointer(
            {"model": parameters, "optim": optimizer}, job="peers", agent=self._agent.socket, on_error="raise"
        )
        self._checkpointer.restore()
        self._step = 1
        self._checkpointer.step(self._step)
        while not self._checkpointer._session.info().ready:
            time.sleep(0.01)

    def save(self) -> tuple[float, float, float]:
        """Seconds in `step()`, until captured, until durable."""
        self._checkpointer.gate()  # as an optimizer's step would
        self._step += 1
        began = time.perf_counter()
        save = self._checkpointer.save(self._step)
        blocked = time.perf_counter() - began
        self._checkpointer.gate()
        captured = time.perf_counter() - began
        if not save.durable(600):
            raise SystemExit("ckptd: not durable within ten minutes")
        return blocked, captured, time.perf_counter() - began

    @property
    def socket(self) -> str:
        return self._agent.socket

    def close(self) -> None:
        self._checkpointer.close(0)
        self._agent.close()


class OursByDcp:
    """The same agent behind torch.distributed.checkpoint, as another job."""

    def __init__(self, state: dict[str, torch.Tensor], socket: str) -> None:
        self._state = state
        self._writer = StorageWriter("peers-dcp", agent=socket)
        self._step = 0

    def save(self) -> tuple[float, float]:
        """Seconds blocked, until durable: one thing."""
        self._step += 1
        began = time.perf_counter()
        dcp.save(self._state, checkpoint_id=f"step-{self._step}", storage_writer=self._writer)
        return time.perf_counter() - began, time.perf_counter() - began

    def async_save(self) -> tuple[float, float]:
        """Seconds blocked (the state may change then), until durable."""
        self._step += 1
        began = time.perf_counter()
        future = dcp.async_save(self._state, checkpoint_id=f"step-{self._step}", storage_writer=self._writer)
        blocked = time.perf_counter() - began
        future.result()
        return blocked, time.perf_counter() - began

    def staged(self) -> tuple[float, float, float]:
        """Seconds blocked, until the state may change, until durable."""
        self._step += 1
        began = time.perf_counter()
        answer = dcp.async_save(
            self._state, checkpoint_id=f"step-{self._step}", storage_writer=self._writer, async_stager=Stager()
        )
        blocked = time.perf_counter() - began
        answer.staging_completion.result()
        captured = time.perf_counter() - began
        answer.upload_completion.result()
        return blocked, captured, time.perf_counter() - began

    def close(self) -> None:
        self._writer.close(0)


def copy_limit(state: dict[str, torch.Tensor], copies: list[torch.Tensor]) -> float:
    began = time.perf_counter()
    for source, copy in zip(state.values(), copies):
        copy.copy_(source)
    return time.perf_counter() - began


def write_limit(path: pathlib.Path, nbytes: int, block: mmap.mmap) -> float:
    began = time.perf_counter()
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
    for _ in range(-(-nbytes // BLOCK)):
        os.write(descriptor, block)
    os.fsync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - began


def rounded(value: float) -> float:
    """Four digits."""
    return float(f"{value:.4g}")


def line(case: str, values: list[float], limits: list[float]) -> None:
    values, limits = [[second * 1e3 for second in seconds[1:]] for seconds in (values, limits)]
    value, limit = statistics.median(values), statistics.median(limits)
    found = {"case": case, "value": rounded(value), "unit": "ms", "limit": rounded(limit)}
    found |= {"ratio": rounded(value / limit), "n": len(values), "spread": [rounded(min(values)), rounded(max(values))]}
    print(json.dumps(found), flush=True)


def main() -> int:
    args, others = arguments()
    if args.device == "cuda":
        return compare_on_gpu(args, others)
    warnings.simplefilter("ignore")
    os.environ["CKPTD_LIB"] = str(args.build / "lib" / "libckpt.so")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ckptd-peers-", dir=args.dir))
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{folder}/rendezvous")
    elements = args.bytes // args.tensors // 4
    parameters = torch.nn.ParameterDict({f"t{i:05}": torch.randn(elements) for i in range(args.tensors)})
    state = {name: parameter.data for name, parameter in parameters.items()}
    try:
        measure(args, folder, parameters, state)
    finally:
        dist.destroy_process_group()
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def measure(args, folder: pathlib.Path, parameters, state: dict[str, torch.Tensor]) -> None:
    peers = Peers(state)
    ways = ["torch_save", "safetensors", "dcp_save", "dcp_async_thread", "dcp_async_process"]
    copies = [torch.empty_like(tensor) for tensor in state.values()]
    block = mmap.mmap(-1, BLOCK)
    block.write(os.urandom(BLOCK))
    seconds: dict[str, list[float]] = defaultdict(list)
    ours = Ours(parameters, folder / "ckptd", args.build)
    by_dcp = OursByDcp(state, ours.socket)
    ours_by_dcp = {
        "ckptd_dcp_save": (by_dcp.save, ("blocked", "durable")),
        "ckptd_dcp_async": (by_dcp.async_save, ("blocked", "durable")),
        "ckptd_dcp_stager": (by_dcp.staged, ("blocked", "captured", "durable")),
    }
    try:
        for _ in range(args.n + 1):
            seconds["copy"].append(copy_limit(state, copies))
            seconds["write"].append(write_limit(folder / "plain", args.bytes, block))
            (folder / "plain").unlink()
            for part, spent in zip(("blocked", "captured", "durable"), ours.save()):
                seconds[f"ckptd.{part}"].append(spent)
            for way, (measured, parts) in ours_by_dcp.items():
                for part, spent in zip(parts, measured()):
                    seconds[f"{way}.{part}"].append(spent)
            for way in ways:
                target = folder / way
                for part, spent in zip(("blocked", "durable"), getattr(peers, way)(target)):
                    seconds[f"{way}.{part}"].append(spent)
                shutil.rmtree(target) if target.is_dir() else target.unlink()
    finally:
        by_dcp.close()
        ours.close()
    for case in [case for case in seconds if "." in case]:
        line(f"peer.{case}", seconds[case], seconds["write" if case.endswith("durable") else "copy"])


if __name__ == "__main__":
    sys.exit(main())
