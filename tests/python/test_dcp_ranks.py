"""torch.distributed.checkpoint through the agent on several ranks: FSDP2, DTensors, what is replicated."""

import time

import ckptd
import pytest
import torch
import torch.distributed.checkpoint as dcp
from dcp_ranks import launch, load, refused, save
from dcp_state import same


def run(agent, tmp_path, world, task, **arguments):
    results = launch(agent, tmp_path, world, task, **arguments)
    for result in results:
        assert not isinstance(result, str), result
    return results


def check(results, expected, step):
    for found, read, source in results:
        assert (read, source) == (step, "storage") and same(found, expected)


@pytest.mark.parametrize("world", [2, 4])
def test_save_and_load(agent, tmp_path, world):
    (expected, *_) = run(agent, tmp_path, world, save, steps=(1, 3))
    check(run(agent, tmp_path, world, load), expected, 3)
    agent.kill()
    agent.lose_region()  # as a reboot
    agent.start()
    check(run(agent, tmp_path, world, load, identity="step-3"), expected, 3)


def test_another_number_of_ranks(agent, tmp_path):
    (expected, *_) = run(agent, tmp_path, 4, save, steps=(2,))
    check(run(agent, tmp_path, 2, load), expected, 2)
    check(run(agent, tmp_path, 3, load, resume=False), expected, 2)
    (sentence, *_) = launch(agent, tmp_path, 1, save, steps=(3,))
    assert "was saved with world size 4" in sentence and "restart=True" in sentence
    (expected, *_) = run(agent, tmp_path, 1, save, steps=(3,), restart=True)
    check(run(agent, tmp_path, 2, load), expected, 3)
    folder = ckptd.open("gpt", storage=str(agent.storage)).path
    stock = {"plain": torch.zeros(2, 3, dtype=torch.int64), "columns": torch.zeros(5, 7)}
    dcp.load(stock, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert torch.equal(stock["plain"], expected["plain"]) and torch.equal(stock["columns"], expected["columns"])


def test_async_save(agent, tmp_path):
    (expected, *_) = run(agent, tmp_path, 2, save, steps=(1, 2, 4), how="async")
    check(run(agent, tmp_path, 2, load), expected, 4)


def test_every_rank_is_killed_after_async_save_returned(agent, tmp_path):
    ranks, _ = launch(agent, tmp_path, 2, save, wait=False, steps=(1, 2), how="async", die_in=str(tmp_path))
    for process in ranks:
        process.join(100)
        assert process.exitcode == -9
    expected = torch.load(tmp_path / "0", weights_only=False)
    check(run(agent, tmp_path, 2, load), expected, 2)  # in memory first: the load waits for the agent to write it


def test_without_collectives(agent, tmp_path):
    (expected, *_) = run(agent, tmp_path, 2, save, steps=(2,), how="no collectives")
    check(run(agent, tmp_path, 2, load), expected, 2)


def test_stock_torch_reads_the_shards(agent, tmp_path):
    (expected, *_) = run(agent, tmp_path, 4, save, steps=(2,))
    folder = ckptd.open("gpt", storage=str(agent.storage)).path
    wanted = {f"model.{name}": torch.zeros_like(value) for name, value in expected["model"].items()}
    wanted["columns"] = torch.zeros(5, 7)
    dcp.load(wanted, storage_reader=dcp.HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert torch.equal(wanted.pop("columns"), expected["columns"])
    assert same(wanted, {f"model.{name}": value for name, value in expected["model"].items()})


def test_what_is_refused(agent, tmp_path):
    for sentences in run(agent, tmp_path, 2, refused):
        alone, process, uneven, *broken = sentences
        assert "DCP runs with 1 ranks" in alone and "give the storage writer and reader the same process_group" in alone
        assert "AsyncCheckpointerType.THREAD" in process
        assert "x: torch.complex128 is no dtype of the safetensors format" in uneven
        assert len(broken) == 2 and all("no pickle of this" in sentence for sentence in broken)
    committed = sorted(path.parent.name[:15] for path in agent.storage.glob("gpt/step-*/manifest.json"))
    assert committed == ["step-0000000003", "step-0000000005"]
