"""torch.distributed.checkpoint through the agent: async_save, the stager, and saves that follow each other."""

import gc

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckptd import _lib
from ckptd.torch.dcp import Stager, StorageWriter
from dcp_state import load, ours, same, save, state  # noqa: F401
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


@pytest.mark.parametrize("until", ["captured", "durable"])
def test_async_save_returns_when_the_state_may_change(ours, until):
    live = state(4, width=50000)  # 6 MB: a copy that would be seen
    expected = {name: value.clone() for name, value in live["model"].items()}
    writer = StorageWriter("gpt", until=until)
    for step in (4, 5, 6):
        future = dcp.async_save(live, checkpoint_id=f"step-{step}", storage_writer=writer)
        for value in live["model"].values():
            value.add_(1000)  # nobody waits for anything
        last, expected = expected, {name: value.clone() for name, value in live["model"].items()}
        assert future.result(60).storage_data
    found, reader = load(found={"model": state(99, width=50000)["model"]})
    assert same(found["model"], last) and reader.step == 6


def test_saves_that_overlap(ours):
    writer, saved, futures = StorageWriter("gpt"), [], []
    for step in range(1, 7):
        live = state(step, width=20000)
        saved.append(live["model"]["w"].clone())
        futures.append(dcp.async_save(live, checkpoint_id=f"step-{step}", storage_writer=writer))
        live["model"]["w"].zero_()
    for future in futures:
        future.result(60)
    found, reader = load(found={"model": {"w": torch.ones(20000, 32)}}, resume=False)
    assert torch.equal(found["model"]["w"], saved[5]) and reader.step == 6


def test_a_save_waits_until_the_one_before_is_written(ours, monkeypatch):
    save(1, until="captured")
    session, waited = StorageWriter("gpt")._link()._session, []
    wait = session.wait

    def recorded(step, level, left):
        waited.append((step, level))
        return wait(step, level, left)

    monkeypatch.setattr(session, "wait", recorded)
    save(2, until="captured")
    assert waited == [(1, _lib.DURABLE), (2, _lib.CAPTURED)]  # a newer one might take its place before


def test_the_agent_dies_and_comes_back(ours):
    save(1)
    ours.kill()
    future = dcp.async_save(state(2), checkpoint_id="step-2", storage_writer=StorageWriter("gpt", timeout=60))
    ours.start()  # the region is still there: what was captured meanwhile is written
    future.result(60)
    found, reader = load()
    assert same(found, state(2)) and reader.step == 2


def test_a_save_that_does_not_reach_storage_in_time_says_so(ours):
    save(1)
    ours.kill()
    with pytest.raises(CheckpointException, match="job gpt: step 2: not on storage in time.*agent does not answer"):
        save(2, timeout=0.5)
    ours.start()


def test_the_stager_lets_training_go_on_until_an_optimizer_steps(ours):
    model = nn.Linear(2000, 1000)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    writer = StorageWriter("gpt")
    for step in range(1, 6):
        before = {name: value.clone() for name, value in model.state_dict().items()}
        answer = dcp.async_save(
            {"model": model.state_dict()}, checkpoint_id=f"{step}", storage_writer=writer, async_stager=Stager()
        )
        gc.collect()  # nobody but the save has the stager
        model(torch.ones(2000)).sum().backward()
        optimizer.step()  # waits for the capture
        assert answer.staging_completion.done()
        answer.upload_completion.result(60)
    found, reader = load(found={"model": nn.Linear(2000, 1000).state_dict()})
    assert same(dict(found["model"]), before) and reader.step == 5
    answer = dcp.async_save({"x": torch.ones(3)}, checkpoint_id="9", storage_writer=writer, async_stager=Stager())
    assert answer.staging_completion.result(60) is None  # what does not wait by a hook waits here
    answer.upload_completion.result(60)
