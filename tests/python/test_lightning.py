"""Lightning's Trainer, killed and started again, ends as one that was not: losses, data, tensors, loops, callbacks."""

import json
import signal
import subprocess
import sys
import types

import pytest
import torch
from ckptd import tree
from ckptd.lightning import Callback
from ckptd.lightning_base import pl
from ckptd.lightning_state import TrainerState, packed, unpacked
from ckptd.state import State
from double import make  # noqa: F401
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
    "ema": ("ema", {"val_check_interval": 2}),
    "average": ("average", {"accumulate_grad_batches": 4}),
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
        ("torchdata", ["batch_start", 9], 8), ("sampler", ["batch_end", 10], 9), ("ema", ["batch_end", 9], 8),
        ("ema", ["validation_end", 8], 7), ("average", ["batch_start", 15], 4),
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


class Filtering(pl.LightningModule):
    """Leaves out what it loads elsewhere, as many do, and more that a checkpoint may have done to it."""

    def __init__(self):
        super().__init__()
        self.body, self.frozen = torch.nn.Linear(40, 40), torch.nn.Linear(40, 40)
        self.register_buffer("unsaved", torch.ones(2000), persistent=False)

    def on_save_checkpoint(self, checkpoint):
        for name in [name for name in checkpoint["state_dict"] if name.startswith("frozen")]:
            del checkpoint["state_dict"][name]
        more = {"same": [self.body.weight], "unsaved": self.unsaved, "bias": self.body.bias + 1}
        checkpoint.update(epoch=-1, more=more)
        del checkpoint["loops"]


class Looking(Filtering):
    def on_load_checkpoint(self, checkpoint):
        self.given = checkpoint


def test_a_lazy_module_is_told_as_everywhere():
    module = Looking()
    module.late = torch.nn.LazyLinear(3)
    with pytest.raises(TypeError, match="model.late.weight: it has no shape yet"):
        State({"model": module, "trainer": OnlyHooks(module)}).survey()


class Witness(pl.Callback):
    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.saw = list(checkpoint["state_dict"])


def state_of(module, *callbacks):
    return TrainerState(types.SimpleNamespace(callbacks=callbacks, current_epoch=1, global_step=3), module)


class OnlyHooks:
    """What hooks store, as an object of `state`."""

    def __init__(self, module):
        self.of = state_of(module)

    def state_dict(self):
        return packed(self.of._of_hooks())

    def load_state_dict(self, state):
        raise NotImplementedError


def test_what_hooks_change_in_a_checkpoint_is_given_back():
    module, other, witness = Looking(), Looking(), Witness()
    found = state_of(module, witness)._of_hooks()
    assert witness.saw == list(module.state_dict()), "callbacks come before the module, as in Lightning"
    stored = [name for name, _ in tree.flatten(packed(found["module"]), "module").tensors]
    assert stored == ["more.unsaved"], "what the module has is not stored twice"
    other.load_state_dict(module.state_dict())
    state_of(other)._give_to_hooks(unpacked(packed(found["module"])), found["removed"])
    given, weights, weight = other.given, other.given["state_dict"], module.body.weight.detach()
    assert list(weights) == ["body.weight", "body.bias"] and torch.equal(weights["body.weight"], weight)
    assert torch.equal(given["more"]["same"][0], weight) and torch.equal(given["more"]["bias"], module.body.bias + 1)
    assert given["epoch"] == -1 and given["lr_schedulers"] == [] and "loops" not in given
    with torch.no_grad():
        other.body.weight.zero_()
    assert torch.equal(given["more"]["same"][0], weight), "training does not change it"


def test_what_no_hook_looks_at_is_not_stored():
    assert list(state_of(Filtering())._of_hooks()["module"]) == ["more"]


@pytest.mark.parametrize("hook", ["on_validation_start", "on_train_end"])
def test_an_average_is_put_in_behind_a_gate(make, hook):  # noqa: F811
    """Inside an accumulation no optimizer has stepped since the save."""
    callback = Callback(job="j")
    callback.checkpointer, double = make({"held": torch.zeros(1)})
    for others, log in (([Witness()], []), ([Witness(), pl.callbacks.EMAWeightAveraging()], ["gate"])):
        getattr(callback, hook)(types.SimpleNamespace(callbacks=[callback, *others]), None)
        assert double.log == log


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
