"""Lightning's checkpoints through the agent: paths as users know them, values as they were saved."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
from collections import OrderedDict, defaultdict

import numpy as np
import pytest
import torch
from ckptd import leaves
from ckptd import lightning_io as pl_io
from conftest import BUILD



class Own:
    """A value that nothing but pickle can hold."""

    def __init__(self, number):
        self.number = number

    def __eq__(self, other):
        return isinstance(other, Own) and other.number == self.number


def values():
    """What users put into a checkpoint."""
    state = torch.nn.BatchNorm1d(3).state_dict()
    return {
        "state_dict": state, "epoch": 3, "loops": {"done": True, "rate": float("inf"), 7: (1, None, b"x")},
        "path": pathlib.Path("a/b"), "dtype": torch.bfloat16, "own": Own(5), "set": {1, 2},
        "many": defaultdict(list, {"a": [1]}),
        "array": np.arange(6.0).reshape(2, 3), "sparse": torch.eye(3).to_sparse(),
        "complex": torch.ones(2, dtype=torch.complex128), "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)), "view": torch.arange(12).reshape(3, 4).t(),
        "optimizer_states": [{"state": {0: {"step": torch.tensor(4.0)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}],
    }  # fmt: skip


def same(found, expected):
    """Types, numbers, attributes."""
    assert type(found) is type(expected), (found, expected)
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and found.requires_grad == expected.requires_grad
        assert torch.equal(found.to_dense(), expected.to_dense())
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype and np.array_equal(found, expected)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
        assert getattr(found, "_metadata", None) == getattr(expected, "_metadata", None)
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            same(one, other)
    else:
        assert found == expected


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """ckptctl is found beside the agent."""
    monkeypatch.setenv("CKPTD_BIN", str(BUILD / "bin" / "ckptd"))


@pytest.fixture
def io(agent):
    made = pl_io.CheckpointIO(job="paths", patience=30)
    yield made
    made.teardown()


def steps(agent, job="paths"):
    """Pinned steps of the job."""
    from ckptd.status import ctl

    return sorted(item["step"] for item in json.loads(ctl("list", job, "-o", "json"))["snapshots"] if item["pinned"])


def test_what_was_saved_comes_back(io, tmp_path):
    io.save_checkpoint(values(), tmp_path / "a.ckpt")
    assert pl_io.read_pointer(tmp_path / "a.ckpt"), "it went through the agent"
    same(io.load_checkpoint(tmp_path / "a.ckpt", weights_only=False), values())


def test_objects_need_trust(io, tmp_path):
    io.save_checkpoint({"x": torch.ones(2), "own": Own(1)}, tmp_path / "a.ckpt")
    io.save_checkpoint({"x": torch.ones(2), "dtype": torch.float16}, tmp_path / "b.ckpt")
    with pytest.raises(Exception, match="(?i)weights.only"):
        io.load_checkpoint(tmp_path / "a.ckpt", weights_only=True)
    assert io.load_checkpoint(tmp_path / "b.ckpt", weights_only=True)["dtype"] is torch.float16


def test_the_state_may_change_when_the_call_returns(io, tmp_path):
    x = torch.ones(1 << 20)
    io.save_checkpoint({"x": x}, tmp_path / "a.ckpt")
    x.zero_()
    assert io.load_checkpoint(tmp_path / "a.ckpt")["x"].sum() == 1 << 20


def test_many_paths_stay_until_they_are_removed(io, agent, tmp_path):
    """More of them than retention keeps, overwritten and removed in any order."""
    for number in range(6):
        io.save_checkpoint({"n": number, "x": torch.full((4,), float(number))}, tmp_path / f"{number}.ckpt")
        io.save_checkpoint({"n": number}, tmp_path / "last.ckpt")
    io.remove_checkpoint(tmp_path / "2.ckpt")
    io.teardown()
    assert not (tmp_path / "2.ckpt").exists() and len(steps(agent)) == 6
    found = {path.name: io.load_checkpoint(path)["n"] for path in sorted(tmp_path.glob("*.ckpt"))}
    assert found == {"0.ckpt": 0, "1.ckpt": 1, "3.ckpt": 3, "4.ckpt": 4, "5.ckpt": 5, "last.ckpt": 5}


TRAINER = """
import sys, torch, ckptd.lightning as l
io = l.CheckpointIO(job="paths", patience=30)
for number in range(3):
    io.save_checkpoint({"n": number, "x": torch.ones(3)}, f"{sys.argv[1]}/{number}.ckpt")
print("saved", flush=True)
sys.stdin.read()
"""


def test_another_process_loads_while_the_trainer_lives_and_when_it_is_dead(agent, tmp_path):
    command, environment = [sys.executable, "-c", TRAINER, str(tmp_path)], agent.environment()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    trainer = subprocess.Popen(command, env=environment, **pipes)
    assert trainer.stdout.readline() == "saved\n"
    io = pl_io.CheckpointIO(job="paths", patience=30)
    loaded = lambda count: [io.load_checkpoint(tmp_path / f"{n}.ckpt")["n"] for n in range(count)]  # noqa: E731
    assert loaded(3) == [0, 1, 2]
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    assert loaded(3) == [0, 1, 2]
    io.save_checkpoint({"n": 3}, tmp_path / "3.ckpt")  # steps go on where the dead one was
    io.teardown()
    agent.kill()
    agent.lose_region()
    agent.start()
    assert loaded(4) == [0, 1, 2, 3]


def test_without_an_agent_a_file_is_written_as_ever(tmp_path, monkeypatch, agent):
    agent.kill()
    io = pl_io.CheckpointIO(job="paths", patience=1)
    with pytest.warns(UserWarning, match="is written by torch.save"):
        io.save_checkpoint({"n": 1}, tmp_path / "a.ckpt")
    assert torch.load(tmp_path / "a.ckpt") == {"n": 1} == io.load_checkpoint(tmp_path / "a.ckpt")


def test_what_goes_wrong_after_the_capture_writes_a_file_and_pins_nothing(io, agent, tmp_path, monkeypatch):
    io.save_checkpoint({"n": 1}, tmp_path / "a.ckpt")
    io.save_checkpoint({"n": 2}, tmp_path / "b.ckpt")
    _, second = steps(agent)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="written by torch.save: .*No space left"):
        patch.setattr(pl_io, "write_pointer", full)
        io.save_checkpoint({"n": 3}, tmp_path / "a.ckpt")
    assert io.load_checkpoint(tmp_path / "a.ckpt") == {"n": 3}
    assert steps(agent) == [second], "neither what a.ckpt named before, nor what it could not name"

    with monkeypatch.context() as patch, pytest.warns(UserWarning, match="written by torch.save: .*No such file.*"):
        patch.setenv("CKPTD_BIN", str(tmp_path / "nowhere" / "ckptd"))
        io.save_checkpoint({"n": 4}, tmp_path / "c.ckpt")
    assert io.load_checkpoint(tmp_path / "c.ckpt") == {"n": 4}


def test_wrong_use_is_told(io, tmp_path):
    with pytest.raises(TypeError, match="storage_options have no meaning for an agent"):
        io.save_checkpoint({}, tmp_path / "a.ckpt", storage_options={"x": 1})
    io.save_checkpoint({}, tmp_path / "a.ckpt")
    pl_io.write_pointer(tmp_path / "gone.ckpt", "paths", 77)
    with pytest.raises(pl_io._errors.NotFound, match="77"):
        io.load_checkpoint(tmp_path / "gone.ckpt")
    with pytest.raises(ValueError, match="job: give a name"):
        pl_io.CheckpointIO()


def test_places_of_tensors():
    stays = (lambda storage, place: storage, None)
    for wanted, found in (("meta", "meta"), ({"cpu": "meta"}, "meta"), *((item, "cpu") for item in stays)):
        tree = leaves.packed({"x": torch.ones(2), "p": torch.nn.Parameter(torch.ones(2))})
        assert {value.device.type for value in leaves.unpacked(tree, wanted).values()} == {found}


def test_a_trainer_with_model_checkpoint(agent, tmp_path):
    """Top two and the last, then a fit that goes on from the last one and a test of the best."""
    import lightning_loop as loop
    from ckptd.lightning_base import pl

    loop.quiet()
    best = None
    for epochs in (2, 3):
        keep = pl.callbacks.ModelCheckpoint(tmp_path / "kept", monitor="val", save_top_k=2, save_last=True)
        trainer = pl.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            default_root_dir=tmp_path, enable_model_summary=False, callbacks=[keep],
            plugins=[pl_io.CheckpointIO(job="fits", patience=30)],
        )  # fmt: skip
        module, data = loop.Net(tmp_path), torch.utils.data.DataLoader(loop.Items(6, 12, noisy=False), 4)
        trainer.fit(module, loop.loader("plain"), data, ckpt_path=best and "last")
        best = keep.best_model_path
        assert trainer.global_step == 6 * epochs and pl_io.read_pointer(best), best
    assert len(list((tmp_path / "kept").glob("epoch=*.ckpt"))) == 2 and len(steps(agent, "fits")) == 3
    (score,) = trainer.validate(module, data, ckpt_path="best", verbose=False)
    assert score["val"] == pytest.approx(keep.best_model_score.item())
    assert os.path.getsize(best) < 200 and threading.active_count() < 20
    assert isinstance(pl_io.CheckpointIO(job="fits").load_checkpoint(best)["state_dict"], OrderedDict)
