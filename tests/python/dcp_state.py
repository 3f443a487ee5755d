"""A state dict, and saving and loading it by torch.distributed.checkpoint through an agent; for tests."""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckptd.torch.dcp import StorageReader, StorageWriter


@pytest.fixture
def ours(agent, monkeypatch):
    monkeypatch.setenv("CKPTD_STORAGE", str(agent.storage))
    yield agent
    leave()


def leave():
    """As the end of the process: what follows is another trainer."""
    return StorageWriter("gpt", rank=0, world_size=1).close(10)


def state(seed, width=64):
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.randn(*shape, generator=generator)

    return {
        "model": {"w": rand(width, 32), "b": rand(32), "t": rand(8, 4).t(), "half": rand(5).bfloat16()},
        "optim": {"state": {0: {"step": torch.tensor(float(seed)), "m": rand(64, 32)}}, "groups": [{"lr": 0.1 * seed}]},
        "plain": {"epoch": seed, "note": "x" * seed, "none": rand(0, 3), "flag": torch.tensor([True, False])},
    }


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def save(step, saved=None, **arguments):
    saved = state(step) if saved is None else saved
    return dcp.save(saved, checkpoint_id=f"step-{step}", storage_writer=StorageWriter("gpt", **arguments))


def load(identity=None, found=None, **arguments):
    found = state(99) if found is None else found
    reader = StorageReader("gpt", **arguments)
    dcp.load(found, checkpoint_id=identity, storage_reader=reader)
    return found, reader
