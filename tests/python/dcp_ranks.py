"""Ranks for test_dcp_ranks.py: forked from a warm process that has imported torch, one gloo group each time.

A task gives something that pickle can carry, or raises; `launch` collects it by rank.
"""

import multiprocessing
import os
import pathlib
import pickle
import signal
import time
import traceback

import torch
import torch._dynamo  # FSDP2 imports it when it is first used
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptd.torch.dcp import StorageReader, StorageWriter
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from warm import importable

_DEADLINE = 100.0  # seconds


def launch(agent, tmp_path, world, task, wait=True, **arguments):
    """Runs `task(rank, world, **arguments)` on `world` ranks. Gives their results, or (wait=False) the processes."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["dcp_ranks"])
    out = tmp_path / f"{task.__name__}-{time.monotonic_ns()}"
    out.mkdir()
    environment = agent.environment(CKPTD_STORAGE=str(agent.storage))
    keep = {key: value for key, value in environment.items() if key.startswith(("CKPTD_", "OMP_"))}
    ranks = [
        context.Process(target=_run, args=(rank, world, str(out), keep, task, arguments)) for rank in range(world)
    ]
    with importable():
        for process in ranks:
            process.start()
    if not wait:
        return ranks, out
    deadline = time.monotonic() + _DEADLINE
    for process in ranks:
        process.join(max(0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
    return [_result(out / f"{rank}", process) for rank, process in enumerate(ranks)]


def _result(path, process):
    if not path.exists():
        raise AssertionError(f"rank {path.name} ended with {process.exitcode} and said nothing")
    return pickle.loads(path.read_bytes())


def _run(rank, world, out, environment, task, arguments):
    os.environ.update(environment)
    signal.alarm(int(_DEADLINE))
    torch.set_num_threads(1)
    torch.manual_seed(1)
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=world)
    try:
        result = task(rank, world, **arguments)
    except BaseException as failed:  # CheckpointException is one
        result = f"{type(failed).__name__}: {failed}\n{traceback.format_exc()}"
    (pathlib.Path(out) / f"{rank}.tmp").write_bytes(pickle.dumps(result))
    (pathlib.Path(out) / f"{rank}.tmp").rename(pathlib.Path(out) / f"{rank}")
    os._exit(0)


# ---- what is trained


def trainee(world):
    """An FSDP2 model, its AdamW, and things that are no parameters."""
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10), nn.Linear(10, 3, bias=False))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=init_device_mesh("cpu", (world,)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(model, optimizer, step):
    """One step; the same on any number of ranks but for rounding."""
    generator = torch.Generator().manual_seed(step)
    optimizer.zero_grad()
    model(torch.randn(16, 6, generator=generator)).square().mean().backward()
    optimizer.step()


def state_of(model, optimizer, step):
    weights, moments = get_state_dict(model, optimizer)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    grid = torch.arange(35.0).reshape(5, 7) + step
    return {
        "model": weights, "optim": moments, "epoch": step, "note": ["x" * step, {"y": (1, 2)}],
        "columns": distribute_tensor(grid, mesh, [Shard(1)]),
        "copies": distribute_tensor(grid * 2, mesh, [Replicate()]),
        "plain": torch.arange(6).reshape(2, 3) * step, "scalar": torch.tensor(step),
    }  # fmt: skip


def whole(value):
    """Everything of a state dict as plain values: comparable on any number of ranks."""
    if isinstance(value, DTensor):
        return value.full_tensor()
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: whole(item) for key, item in value.items()}
    return value


# ---- tasks


def refused(rank, world):
    """The sentences of what cannot work."""
    found = []
    group = dist.new_group()

    def told(action):
        try:
            action()
        except BaseException as failed:
            found.append(f"{type(failed).__name__}: {failed}")

    state = {"x": torch.ones(3)}
    told(lambda: dcp.save(state, checkpoint_id="step-1", storage_writer=StorageWriter("gpt"), no_dist=True))
    one = StorageWriter("gpt", process_group=group)
    process = AsyncCheckpointerType.PROCESS
    told(lambda: dcp.async_save(state, checkpoint_id="1", storage_writer=one, async_checkpointer_type=process).result())
    uneven = {"x": torch.ones(3, dtype=torch.complex128 if rank else torch.float32)}
    told(lambda: dcp.save(uneven, checkpoint_id="step-1", storage_writer=one))
    broken = {"x": torch.ones(3), f"only{rank}": Broken() if rank else torch.ones(2)}
    for step in (2, 4):  # before this rank has a layout, and after it had one
        began = time.monotonic()
        told(lambda: dcp.save(broken, checkpoint_id=f"step-{step}", storage_writer=one))  # noqa: B023
        assert time.monotonic() - began < 30, "the other rank waited for what cannot come"
        dcp.save({"x": torch.ones(3)}, checkpoint_id=f"step-{step + 1}", storage_writer=one)
    return found


class Broken:
    """Cannot be saved."""

    def __reduce__(self):
        raise ValueError("no pickle of this")


def save(rank, world, steps, how="save", until="durable", restart=False, die_in=None):
    """Trains and saves at each of `steps`. Gives what was saved last; die_in: leaves it in that folder and dies."""
    model, optimizer = trainee(world)
    group = dist.new_group()
    expected = None
    for step in range(1, max(steps) + 1):
        train(model, optimizer, step)
        if step not in steps:
            continue
        writer = StorageWriter("gpt", until=until, restart=restart, process_group=group)
        state = state_of(model, optimizer, step)
        expected = whole(state)
        if how != "async":
            alone = how == "no collectives"
            dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer, use_collectives=not alone)
            continue
        future = dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer, process_group=group)
        for tensor in [p for p in model.parameters()] + [s for v in optimizer.state.values() for s in v.values()]:
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            with torch.no_grad():
                local.add_(1000)  # who waits for nothing after async_save must not tear it
        if die_in is not None and step == max(steps):
            torch.save(expected, f"{die_in}/{rank}")
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        future.result()
    return expected


def load(rank, world, identity=None, **reader_arguments):
    """A fresh trainee with another seed loads. Gives its state, step and source."""
    torch.manual_seed(77)
    model, optimizer = trainee(world)
    state = state_of(model, optimizer, 0)
    reader = StorageReader("gpt", **reader_arguments)
    dcp.load(state, checkpoint_id=identity, storage_reader=reader)
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    again = state_of(model, optimizer, 0)
    found = {**whole(state), "model": whole(again["model"]), "optim": whole(again["optim"])}
    return found, reader.step, reader.source
