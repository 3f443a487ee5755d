"""torch.distributed.checkpoint through the agent, with the real torch: one process."""

import gc
import pathlib
import subprocess
import sys
import threading
import time
import weakref

import ckptd
import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckptd.torch import _pieces
from ckptd.torch._link import Link
from ckptd.torch._source import _Batch
from ckptd.torch.dcp import Stager, StorageReader, StorageWriter, step_of
from conftest import BUILD
from dcp_state import leave, load, ours, same, save, state  # noqa: F401
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def test_save_and_load(ours):
    assert StorageReader("gpt").newest() == 0
    for step in (1, 2, 30):
        metadata = save(step)
    assert set(metadata.storage_data.values()) == {0} and ckptd.open("gpt").step == 30
    for step, identity in ((30, None), (2, "step-2"), (30, "/anywhere/30"), (30, folder(ours, 30))):
        found, reader = load(identity)
        assert same(found, state(step)) and reader.step == step, identity
        assert reader.source == ("region" if identity is None else "storage")


def folder(agent, step):
    return next((agent.storage / "gpt").glob(f"step-{step:010d}.a*"))


def test_a_trainer_that_comes_again(ours):
    save(5)
    assert leave()
    reader, writer = StorageReader("gpt"), StorageWriter("gpt")
    assert reader.newest() == 5
    found = state(99)
    dcp.load(found, storage_reader=reader)
    assert same(found, state(5)) and (reader.step, reader.source) == (5, "region")
    dcp.save(state(6), checkpoint_id="step-6", storage_writer=writer)
    ours.kill()
    ours.lose_region()  # as a reboot
    ours.start()
    leave()
    found, reader = load()
    assert same(found, state(6)) and (reader.step, reader.source) == (6, "storage")
    model, reader = load(found={"model": state(99)["model"]})  # parts, and twice: both are one step
    assert same(model["model"], state(6)["model"]) and reader.step == 6


def test_a_real_model_by_the_helpers_of_torch(ours):
    def trainee(seed):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
        return model, torch.optim.AdamW([{"params": model[0].parameters()}, {"params": model[1:].parameters()}], lr=0.1)

    def train(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(4, 6)).sum().backward()
            optimizer.step()

    model, optimizer = trainee(1)
    train(model, optimizer)
    weights, moments = get_state_dict(model, optimizer)
    save(3, {"model": weights, "optim": moments})
    again, other = trainee(2)
    weights, moments = get_state_dict(again, other)
    found, _ = load(found={"model": weights, "optim": moments})
    set_state_dict(again, other, model_state_dict=found["model"], optim_state_dict=found["optim"])
    assert same(again.state_dict(), model.state_dict())
    torch.manual_seed(9)
    train(model, optimizer)
    torch.manual_seed(9)
    train(again, other)
    assert same(again.state_dict(), model.state_dict())
    assert same(other.state_dict()["state"], optimizer.state_dict()["state"])


def test_without_a_template_and_with_another_dtype(ours):
    save(7)
    found = _load_state_dict_from_keys(storage_reader=StorageReader("gpt"))
    assert same(found["model"], state(7)["model"]) and found["plain"]["note"] == "x" * 7
    found = _load_state_dict_from_keys("model", storage_reader=StorageReader("gpt"))
    assert same(found, {"model": state(7)["model"]})
    wide = {"model": {"half": torch.zeros(5), "t": torch.zeros(8, 4).t()}}
    load(found=wide)
    assert torch.equal(wide["model"]["half"], state(7)["model"]["half"].float())
    assert torch.equal(wide["model"]["t"], state(7)["model"]["t"])


@pytest.mark.parametrize("identity", [None, "step-7"], ids=["from the agent", "from storage"])
def test_a_default_device_of_torch_gives_no_address_to_read_into(ours, monkeypatch, identity):
    """What is not plain, or has another dtype, is read by way of memory of ours: on the host, whatever torch's default."""
    save(7)
    seen = []

    def run(batch, whole=_Batch.run):
        seen.extend(address for address, _, size in batch._boxes)
        assert all(seen)  # tensors on meta have no address; those of a GPU have one that the host must not write to
        whole(batch)

    monkeypatch.setattr(_Batch, "run", run)
    found = {"model": {"half": torch.zeros(5), "t": torch.zeros(8, 4).t()}}
    with torch.device("meta"):
        load(identity, found)
    assert seen and torch.equal(found["model"]["half"], state(7)["model"]["half"].float())
    assert torch.equal(found["model"]["t"], state(7)["model"]["t"])


def test_plain_values_that_grow_and_layouts_that_change(ours):
    for step, length in ((1, 10), (2, 20000), (3, 5)):
        grown = {**state(step, width=63 + step), "note": "y" * length}
        save(step, grown)
        found, _ = load(found={**state(99, width=63 + step), "note": ""})
        assert same(found, grown)


def test_what_a_checkpointer_saved(ours):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 16, bias=False))
    model[1].weight = model[0].weight
    optimizer = torch.optim.AdamW(model.parameters())
    with ckptd.Checkpointer({"model": model, "optim": optimizer}, job="gpt", on_error="raise") as checkpointer:
        checkpointer.restore()
        model(torch.arange(16)).sum().backward()
        optimizer.step()
        checkpointer.step(1)
        while not checkpointer._session.info().ready:
            time.sleep(0.005)
        assert checkpointer.save(2).durable(30)
    found = {"model": {name: torch.zeros_like(value) for name, value in model.state_dict().items()}}
    load(found=found)
    assert same(dict(found["model"]), dict(model.state_dict()))


class Broken:
    def __reduce__(self):
        raise ValueError("no pickle of this")


class Wrapper(torch.Tensor):
    """A wrapper subclass: its elements are in another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return False if function is torch.ops.aten.is_pinned.default else cls(torch.ones(2))


@pytest.mark.parametrize(
    "tensor, sentence",
    [(Wrapper(torch.ones(2)), "x: a Wrapper wraps other"), (torch.ones(2).to_sparse(), "x: a torch.sparse_coo"),
     (torch.ones(2, device="meta"), "x: it lives on meta")],
    ids=["wrapper", "sparse", "meta"],
)  # fmt: skip
def test_what_has_no_plain_memory_is_refused_by_name(ours, tensor, sentence):
    with pytest.raises(CheckpointException, match=f"TypeError: {sentence}"):
        save(1, {"x": tensor})
    save(2)


class LateStager(Stager):
    """Its save begins when async_save has returned: torch takes one that has failed by then for staged."""

    def __init__(self):
        super().__init__()
        self.returned = threading.Event()

    def stage(self, state_dict):
        staged = super().stage(state_dict)
        begin = staged.begin
        staged.begin = lambda: (self.returned.wait(60), begin())
        return staged


@pytest.mark.parametrize("bad", [{"x": torch.zeros(2, dtype=torch.complex128)}, {"x": Broken()}], ids=["plan", "data"])
def test_a_save_that_fails_keeps_nobody_waiting(ours, bad):
    writer = StorageWriter("gpt")
    future = dcp.async_save(bad, checkpoint_id="step-1", storage_writer=writer)
    with pytest.raises(CheckpointException, match="no dtype of the safetensors format|no pickle of this"):
        future.result(60)
    stager = LateStager()
    answer = dcp.async_save(bad, checkpoint_id="step-2", storage_writer=writer, async_stager=stager)
    stager.returned.set()
    with pytest.raises(RuntimeError, match="ended before its state was captured"):
        answer.staging_completion.result(60)
    with pytest.raises(CheckpointException):
        answer.upload_completion.result(60)
    save(3)
    assert same(load()[0], state(3))


def test_steps_rise_and_a_new_trainer_has_loaded_or_says_so(ours):
    save(10)
    with pytest.raises(CheckpointException, match="step 10 is not above 10.*steps rise"):
        save(10)
    leave()
    with pytest.raises(CheckpointException, match="job gpt has step 10, and this process saves step 3 without having"):
        save(3)
    save(11)  # above it, as when the state came from elsewhere
    leave()
    save(3, restart=True)
    assert ckptd.open("gpt").step == 3
    load("step-11")  # of the history that was left: on storage still
    leave()
    load("step-3")
    save(4)
    assert ckptd.open("gpt").step == 4


@pytest.mark.parametrize(
    "identity, step", [("step-100", 100), ("/x/100", 100), ("step-0000000007.a0002", 7), (pathlib.Path("/a/b12"), 12)]
)
def test_steps_of_checkpoint_ids(identity, step):
    assert step_of(identity) == step and StorageWriter.validate_checkpoint_id(identity)


def test_arguments_that_make_no_sense(ours):
    assert not StorageWriter.validate_checkpoint_id("latest")
    with pytest.raises(ValueError, match="'latest' ends with no step number; name it like 'step-100'"):
        dcp.save(state(1), checkpoint_id="latest", storage_writer=StorageWriter("gpt"))
    with pytest.raises(CheckpointException, match="none was given; name the step"):
        dcp.save(state(1), storage_writer=StorageWriter("gpt"))
    with pytest.raises(CheckpointException, match="DCP runs with 1 ranks, the argument says 2"):
        save(1, rank=0, world_size=2)
    for wrong in ({"until": "later"}, {"rank": 1}):
        with pytest.raises(ValueError):
            StorageWriter("gpt", **wrong)
    dcp.save(state(8), storage_writer=StorageWriter("gpt", step=8))
    assert same(load(step=8)[0], state(8))
    with pytest.raises(CheckpointException, match="Missing key in checkpoint state_dict: other"):
        load(found={"other": torch.zeros(2)})
    with pytest.raises(CheckpointException, match="NotFound.*step 77"):
        load("step-77")
    with pytest.raises(ckptd.NotFound):
        StorageReader("none").read_metadata()
    save(9)


def test_no_agent(monkeypatch, tmp_path):
    monkeypatch.setenv("CKPTD_LIB", str(BUILD / "lib" / "libckpt.so"))
    monkeypatch.setenv("CKPTD_SOCKET", str(tmp_path / "none.sock"))
    for action in (save, lambda step, **more: load(**more)):
        with pytest.raises(CheckpointException, match=r"AgentUnreachable.*none\.sock.*systemctl status ckptd"):
            action(1, connect_timeout=0.2)


def test_reading_beside_a_trainer_needs_no_agent(ours):
    save(1)
    save(2)
    code = (
        "import torch, torch.distributed.checkpoint as dcp; from ckptd.torch.dcp import StorageReader\n"
        "sd = {'model': {'b': torch.zeros(32)}}; reader = StorageReader('gpt', resume=False)\n"
        "dcp.load(sd, storage_reader=reader); print(reader.step, reader.source, sd['model']['b'].sum().item().hex())"
    )
    nobody = ours.environment(CKPTD_STORAGE=str(ours.storage), CKPTD_SOCKET="/none")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], env=nobody, capture_output=True, text=True, timeout=100
    )
    assert done.stdout.split() == ["2", "storage", state(2)["model"]["b"].sum().item().hex()], done.stderr
    save(3)  # the trainer was not disturbed


@pytest.mark.parametrize("how", ["save", "async_save", "a save that is refused"])
def test_no_copy_of_the_state_stays_behind_a_save(ours, monkeypatch, how):
    made = []

    def noted(tensor, name):
        names.append(name)
        made.append(weakref.ref(found := plain(tensor, name)))
        return found

    plain = _pieces.plain
    monkeypatch.setattr(_pieces, "plain", noted)
    if how == "a save that is refused":
        monkeypatch.setattr(Link, "_await_memory", refuse)
    for step in (1, 2):
        names = []
        if how == "save":
            save(step)
        elif how == "async_save":
            dcp.async_save(state(step), checkpoint_id=f"step-{step}", storage_writer=StorageWriter("gpt")).result(60)
        else:
            with pytest.raises(CheckpointException, match="no room"):
                save(step)
        gc.collect()
        assert len(names) == 8 and not any(copy() is not None for copy in made), "a copy is as big as the state"


def refuse(*_):
    raise ckptd.SaveError("no room")


KILLED = """
import os, signal, sys, threading, torch, torch.distributed.checkpoint as dcp
from ckptd.torch.dcp import StorageWriter
sys.path.insert(0, sys.argv[1])
from dcp_state import state
writer = StorageWriter("gpt")
dcp.save(state(1, 200000), checkpoint_id="step-1", storage_writer=writer)
future = dcp.async_save(state(2, 200000), checkpoint_id="step-2", storage_writer=writer)
print(future.done(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_after_async_save_returned(ours):
    here = str(pathlib.Path(__file__).parent)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", KILLED, here], env=ours.environment(), text=True,
                          capture_output=True, timeout=100)  # fmt: skip
    assert done.returncode == -9 and done.stdout == "False\n", (done.stdout, done.stderr)
    found, reader = load(found=state(99, 200000))
    assert same(found, state(2, 200000)) and (reader.step, reader.source) == (2, "region")
    deadline = time.monotonic() + 30
    while ckptd.open("gpt").step != 2:  # the agent writes it without its trainer
        assert time.monotonic() < deadline
        time.sleep(0.02)
    leave()
    ours.kill()
    found, reader = load(found=state(99, 200000), resume=False)
    assert same(found, state(2, 200000)) and reader.source == "storage"


def damaged(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_what_is_damaged_is_refused(ours):
    save(1)
    target = folder(ours, 1)
    (image,) = target.glob("*.safetensors")
    header = 8 + int.from_bytes(image.read_bytes()[:8], "little")
    (sidecar,) = target.glob("rank-*.json")
    size = image.stat().st_size
    cases = [
        (image, header + 5, "the checksum of bytes"), (image, 20, "the checksum of bytes"),
        (image, size - 3, "the checksum of bytes"), (sidecar, 30, "its checksum is wrong"),
        (target / "manifest.json", 30, "its checksum is wrong"),
    ]  # fmt: skip
    for path, at, sentence in cases:
        good = path.read_bytes()
        damaged(path, at)
        with pytest.raises(CheckpointException, match=rf"RestoreError: \S*{path.name}.*{sentence}.*ckptctl verify"):
            load(resume=False)
        path.write_bytes(good)
    with open(image, "r+b") as file:
        file.truncate(size - 4096)
    with pytest.raises(CheckpointException, match="RestoreError"):
        load(resume=False)
