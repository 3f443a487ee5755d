"""Lightning's Trainer, killed and started again, ends as one that was not: losses, data, tensors, loops, callbacks."""

import json
import signal
import subprocess
import sys

import pytest
import torch
from ckptd.lightning_state import packed, unpacked
from warm import Warm, agent_without_flushes

# kind of the loop, and arguments of the Trainer
CONFIGS = {
    "plain": ("plain", {"val_check_interval": 2}),
    "accumulation": ("plain", {"accumulate_grad_batches": 4, "gradient_clip_val": 1.0, "check_val_every_n_epoch": 2}),
    "plateau": ("workers", {"max_epochs": 4}),
    "manual": ("manual", {"val_check_interval": 3}),
    "stream": ("stream", {"limit_train_batches": 5}),
    "unlimited stream": ("stream", {}),
    "sampler": ("sampler", {}),
    "torchdata": ("torchdata", {"max_epochs": -1, "max_steps": 15}),
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """The process that forks, and its agent."""
    folder = tmp_path_factory.mktemp("lightning")
    running = agent_without_flushes(folder)
    process = Warm("lightning_loop", folder, running.environment())
    process.references, process.environment = {}, running.environment()
    yield process
    process.end()
    running.remove()


@pytest.fixture
def run(warm, tmp_path):
    """Runs the loop; `run.undisturbed(config)` is what it reports without ckptd."""

    def one(name, config, **more):
        (tmp_path / name).mkdir(exist_ok=True)
        kind, options = CONFIGS[config]
        return warm.run(out=str(tmp_path / name), job=f"pl-{tmp_path.name}", kind=kind, **{"more": options, **more})

    def undisturbed(config):
        if config not in warm.references:
            status, said = one("undisturbed", config, save=False)
            assert status == 0, said
            warm.references[config] = report(tmp_path / "undisturbed")
        return warm.references[config]

    one.undisturbed = undisturbed
    return one


def report(folder):
    """(loss of each batch as written last, final report)."""
    lines = [line.split() for line in (folder / "loss").read_text().splitlines()]
    return {tuple(line[:2]): line[2:] for line in lines}, json.loads((folder / "final.json").read_text())


@pytest.mark.parametrize(
    "config, die, at_least",
    [
        ("plain", ["batch_end", 9], 8), ("plain", ["validation_end", 8], 7), ("plain", ["epoch_end", 6], 5),
        ("plain", ["batch_start", 7], 6), ("accumulation", ["batch_start", 15], 4), ("plateau", ["batch_end", 14], 13),
        ("manual", ["batch_end", 10], 9), ("stream", ["batch_end", 8], 7), ("unlimited stream", ["batch_end", 12], 11),
        ("torchdata", ["batch_start", 9], 8), ("sampler", ["batch_end", 10], 9),
    ],
)  # fmt: skip
def test_killed_and_started_again(run, tmp_path, config, die, at_least):
    """Inside an epoch and an accumulation, after a validation, at an epoch's end, and in the first batch after it."""
    expected, reference = run.undisturbed(config)
    for end, arguments in ((-signal.SIGKILL, {"die": die}), (0, {})):
        status, said = run("killed", config, **arguments)
        assert status == end, said
    losses, found = report(tmp_path / "killed")
    assert found["report"] == reference["report"]
    assert losses == expected
    assert found["restored"][0] >= at_least - 1 and found["restored"][1] == "region", found


def test_training_goes_on_without_an_agent(agent, tmp_path, run):
    expected, reference = run.undisturbed("plain")
    environment = {"CKPTD_SOCKET": str(agent.socket)}
    status, said = run("alone", "plain", environment=environment, stop_agent=agent.process.pid)
    assert status == 0, said
    agent.process.wait()
    losses, found = report(tmp_path / "alone")
    assert (losses, found["report"]) == (expected, reference["report"])


@pytest.mark.parametrize(
    "how, sentence",
    [
        ("several", "ValueError: ckptd.lightning: one training loader can be resumed, not several; join"),
        ("iterator", "ValueError: ckptd.lightning: a training_step(dataloader_iter) fetches unseen; take"),
        ("held", "TypeError: trainer.module.held: a builtins.object cannot be saved; convert it"),
        ("no agent", "AgentUnreachable"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused(run, tmp_path, how, sentence):
    environment = {"CKPTD_SOCKET": "/tmp/ckptd-none.sock"} if how == "no agent" else {}
    status, said = run("wrong", "plain", how=how, environment=environment)
    assert status == 0, said
    assert (tmp_path / "wrong" / "refused").read_text().startswith(sentence)


@pytest.mark.parametrize(
    "how, sentence",
    [
        ("ckpt_path", "ValueError: ckptd.lightning: job"),
        ("other callbacks", "RestoreError: step 4: ValueError: the callbacks were"),
    ],
)
def test_a_resume_that_contradicts_itself_is_refused(run, tmp_path, how, sentence):
    assert run("killed", "plain", die=["batch_end", 5])[0] == -signal.SIGKILL
    status, said = run("killed", "plain", how=how)
    assert status == 0, said
    assert (tmp_path / "killed" / "refused").read_text().startswith(sentence)


def test_small_tensors_come_back_under_a_default_device_of_torch():
    metrics = [torch.tensor(2.5), torch.zeros(0, 3), torch.tensor([True])]
    with torch.device("meta"):
        again = unpacked(packed(metrics))
    assert all(map(torch.equal, again, metrics)) and [one.device.type for one in again] == ["cpu"] * 3


def test_the_package_of_the_other_name(warm, tmp_path):
    """pytorch_lightning, when that is what the program imported."""
    program = "import pytorch_lightning, lightning_loop, sys\nlightning_loop.main(sys.argv[1], job='other')"
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, env=warm.environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert report(tmp_path)[1]["restored"] == [0, "none"]
