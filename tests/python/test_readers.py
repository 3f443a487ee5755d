"""The files on storage are read by stock software: safetensors, torch.distributed.checkpoint, and by `ckptd.open`."""

import json
import mmap
import shutil
import struct
import time
from concurrent.futures import ThreadPoolExecutor

import ckptd
from ckptd import _lib
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch import nn


@pytest.fixture
def saved(agent):
    """(folder of a committed step, model, optimizer), saved by a checkpointer that is closed."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 16, bias=False))
    model[2].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    live = {"half": torch.randn(3, dtype=torch.bfloat16), "flag": torch.tensor([True, False]), "note": ("x", {1: 2.5})}
    live["none"] = torch.empty(0, 3)
    checkpointer = ckptd.Checkpointer(
        {"model": model, "optim": optimizer, "live": live}, job="readers", on_error="raise"
    )
    checkpointer.restore()
    for step in (1, 2):
        optimizer.zero_grad()
        model(torch.arange(16)).square().sum().backward()
        optimizer.step()
        checkpointer.step(step)
    save_when_ready(checkpointer, 2).durable(30)
    assert checkpointer.close()
    folders = sorted((agent.storage / "readers").glob("step-*"))
    assert (folders[-1] / "manifest.json").exists()
    return folders[-1], model, optimizer, live


def save_when_ready(checkpointer, step):
    """The memory of a new layout is prepared in the background: the first saves may be refused."""
    deadline = time.monotonic() + 20
    while not checkpointer._session.info().ready:
        assert time.monotonic() < deadline, "the layout never became ready"
        time.sleep(0.002)
    return checkpointer.save(step + 1)


def expected(model, optimizer):
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        tensors.update({f"optim.state.{name}.{key}": value for key, value in optimizer.state[parameter].items()})
    return tensors


def test_safetensors(saved):
    folder, model, optimizer, _ = saved
    (path,) = folder.glob("*.safetensors")
    loaded = safetensors.torch.load_file(path)
    tensors = expected(model, optimizer)
    tensors.pop("model.2.weight")  # tied: stored once
    for name, value in tensors.items():
        assert loaded[name].dtype == value.dtype and torch.equal(loaded[name], value), name
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata()["format"] == "pt"
        assert json.loads(file.metadata()["ckptd.aliases"]) == {"model.2.weight": "model.0.weight"}


def test_distributed_checkpoint(saved):
    folder, model, optimizer, _ = saved
    reader = dcp.HuggingFaceStorageReader(str(folder))
    tensors = expected(model, optimizer)
    tensors.pop("model.2.weight")
    wanted = {name: torch.zeros_like(value) for name, value in tensors.items()}
    dcp.load(wanted, storage_reader=reader, no_dist=True)
    for name, value in tensors.items():
        assert torch.equal(wanted[name], value), name


def test_mmap(saved):
    folder, model, _, _ = saved
    (path,) = folder.glob("*.safetensors")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        (length,) = struct.unpack("<Q", data[:8])
        assert (8 + length) % 4096 == 0 and len(data) % 4096 == 0 and data[8:9] == b"{"
        begin, end = json.loads(data[8 : 8 + length])["model.0.weight"]["data_offsets"]
        assert data[8 + length + begin : 8 + length + end] == model[0].weight.detach().numpy().tobytes()


def test_open_without_an_agent(saved, agent):
    folder, model, optimizer, live = saved
    agent.kill()
    for checkpoint in (
        ckptd.open(folder),
        ckptd.open("readers", storage=str(agent.storage)),
        ckptd.open(folder.parent),
    ):
        assert checkpoint.step == 3 and checkpoint.world_size == 1 and checkpoint.job == "readers"
        for name, value in expected(model, optimizer).items():
            assert torch.equal(checkpoint[name], value), name
        again = checkpoint.plain()["live"]
        assert again["note"] == live["note"] and torch.equal(again["half"], live["half"])
        assert checkpoint.plain()["optim"]["groups"][0]["lr"] == 0.1
    tensor = checkpoint["model.0.weight"]
    tensor.zero_()  # a private mapping: the file stays as it is
    assert torch.equal(ckptd.open(folder)["model.0.weight"], model[0].weight)


def test_open_under_a_default_device_of_torch(saved):
    with torch.device("meta"):
        assert {tensor.device.type for tensor in ckptd.open(saved[0]).values()} == {"cpu"}


def test_two_ranks_with_replicas(agent):
    torch.manual_seed(1)
    model = nn.Linear(3, 3)
    own = [{"own": torch.full((2,), float(rank)), "rank": rank} for rank in range(2)]

    def save(rank):
        state = {"model": model, f"rank{rank}": own[rank]}
        checkpointer = ckptd.Checkpointer(state, job="two", rank=rank, world_size=2, on_error="raise")
        try:
            assert checkpointer.restore(timeout=20) == 0
            checkpointer.step(1)
            assert save_when_ready(checkpointer, 1).durable(30)
        finally:
            closed = checkpointer.close()  # else it watches the optimizers of tests that come after it
        return closed

    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(save, rank) for rank in range(2)]
    assert [run.exception() for run in runs] == [None, None]  # of both: a save that one drops fails the other's, too
    assert [run.result() for run in runs] == [True, True]
    checkpoint = ckptd.open("two", storage=str(agent.storage))
    assert checkpoint.world_size == 2 and checkpoint.plain(rank=1)["rank1"]["rank"] == 1
    assert checkpoint.rank(1)["rank1.own"].tolist() == [1, 1]
    wanted = {"model.weight": torch.zeros(3, 3), "rank0.own": torch.zeros(2), "rank1.own": torch.zeros(2)}
    dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(str(checkpoint.path)), no_dist=True)
    assert torch.equal(wanted["model.weight"], model.weight) and wanted["rank1.own"].tolist() == [1, 1]


def forge(folder, step, attempt):
    """A copy of a committed step under another identity."""
    target = folder.parent / f"step-{step:010d}.a{attempt:04d}"
    shutil.copytree(folder, target)
    document = json.loads((target / "manifest.json").read_text())
    document.update(step=step, attempt=attempt)
    document.pop("crc32c")
    text = json.dumps(document)[:-1].encode() + b","
    checksum = _lib.library().ckpt_crc32c(0, text, len(text))
    (target / "manifest.json").write_bytes(text + b'"crc32c":%d}' % checksum)
    return target


def test_open_follows_the_lineage_not_the_highest_number(saved):
    folder = saved[0]
    attempts = folder.parent / "attempts"
    forge(folder, 90, 1)
    rolled_back = {"lineage": [{"attempt": 1, "last_step": 3}]}
    (attempts / "a0002.decided.json").write_text(json.dumps(rolled_back))
    (attempts / "a0003.json").write_text("{}")  # opened, never decided
    assert ckptd.open(folder.parent).step == 3
    forge(folder, 5, 2)
    forge(folder, 7, 3)
    assert (ckptd.open(folder.parent).step, ckptd.open(folder.parent).attempt) == (5, 2)
    (folder.parent / "step-0000000005.a0002" / "deleting").write_text("{}")
    assert ckptd.open(folder.parent).step == 3


def test_open_refuses_what_is_damaged(saved, tmp_path):
    folder = saved[0]
    with pytest.raises(ckptd.NotFound):
        ckptd.open(tmp_path / "nothing")
    (path,) = folder.glob("*.safetensors")
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate(size - 4096)
    with pytest.raises(ckptd.RestoreError, match=path.name):
        ckptd.open(folder)
    with pytest.raises(ckptd.RestoreError, match="shorter"):
        ckptd.open(path)
    manifest = folder / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step":3', b'"step":4'))
    with pytest.raises(ckptd.RestoreError, match="checksum"):
        ckptd.open(folder)
