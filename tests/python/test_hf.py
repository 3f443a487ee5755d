"""transformers.Trainer, killed and started again, ends as one that was not: losses, data, tensors, log, schedule."""

import json
import signal

import pytest
from matrix.trials import late_copy
from warm import Warm, agent_without_flushes

CONFIGS = {
    "accumulation": {},
    "workers": {"dataloader_num_workers": 2, "gradient_accumulation_steps": 1, "max_steps": 20},
    "drawn data": {"masked": True, "gradient_accumulation_steps": 3},
    "drawn order": {"accelerator_config": {"use_seedable_sampler": False}, "lr_scheduler_type": "reduce_lr_on_plateau",
                    "eval_strategy": "epoch", "optim": "adafactor"},
    "schedule-free": {"schedule_free": True, "late": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """The process that forks, and an agent that flushes nothing: restores from storage have their own tests."""
    folder = tmp_path_factory.mktemp("hf")
    running = agent_without_flushes(folder)
    process = Warm("hf_loop", folder, running.environment(LD_PRELOAD=str(late_copy(folder))))
    process.references = {}
    yield process
    process.end()
    running.remove()


@pytest.fixture
def run(warm, tmp_path, request):
    """Runs the loop; `run.out(name)` is what it reported, `run.undisturbed(config)` what it reports without ckptd."""

    def one(name, **more):
        (tmp_path / name).mkdir(exist_ok=True)
        return warm.run(out=str(tmp_path / name), job=f"hf-{tmp_path.name}", **more)

    def undisturbed(config):
        if config not in warm.references:
            assert one("undisturbed", save=False, more=CONFIGS[config])[0] == 0
            warm.references[config] = report(tmp_path / "undisturbed")
        return warm.references[config]

    one.out, one.undisturbed, one.path = lambda name: report(tmp_path / name), undisturbed, tmp_path
    return one


def report(folder):
    """(loss of each micro-batch as written last, final report)."""
    lines = [line.split() for line in (folder / "loss").read_text().splitlines()]
    return {(step, micro): rest for step, micro, *rest in lines}, json.loads((folder / "final.json").read_text())


@pytest.mark.parametrize(
    "config, die, at_least",
    [
        ("accumulation", ["step_end", 6], 5), ("accumulation", ["epoch_end", 4], 3),
        ("accumulation", ["step_begin", 8], 7),
        ("accumulation", ["substep_end", 5], 4), ("workers", ["evaluate", 10], 9), ("drawn order", ["step_end", 7], 6),
        ("drawn order", ["step_begin", 5], 4), ("drawn data", ["step_end", 5], 4),
        ("drawn data", ["substep_end", 7], 6), ("schedule-free", ["step_end", 7], 6),
    ],
)  # fmt: skip
def test_killed_and_started_again(run, config, die, at_least):
    """Inside an epoch, between a step and its evaluation, at an epoch's end, and in the first step after it."""
    expected, reference = run.undisturbed(config)
    for end, arguments in ((-signal.SIGKILL, {"die": die}), (0, {})):
        status, said = run("killed", more=CONFIGS[config], **arguments)
        assert status == end, said
    losses, found = run.out("killed")
    assert found["report"] == reference["report"]
    assert losses == expected
    assert found["restored"][0] >= at_least - 1 and found["restored"][1] == "region", found
    assert "TORN" not in found["dropped"]


def test_training_goes_on_without_an_agent(warm, agent, tmp_path, run):
    expected, reference = run.undisturbed("accumulation")
    environment = {"CKPTD_SOCKET": str(agent.socket)}
    (tmp_path / "alone").mkdir()
    status, said = warm.run(environment, out=str(tmp_path / "alone"), stop_agent=agent.process.pid)
    assert status == 0, said
    agent.process.wait()
    losses, found = run.out("alone")
    assert (losses, found["report"]) == (expected, reference["report"])


@pytest.mark.parametrize(
    "how, sentence",
    [
        ("not given", "ValueError: ckptd.hf: this callback is not the Trainer's: Trainer(..., callbacks=[cb])"),
        ("not resumed", "RuntimeError: ckptd.hf: write trainer.train(resume_from_checkpoint=cb.resume(trainer))"),
        ("ignored", "ValueError: ckptd.hf: ignore_data_skip=True trains on other batches after a restart; leave"),
        ("searched", "ValueError: ckptd.hf: auto_find_batch_size=True begins anew with other batches; give a size"),
        ("held", "TypeError: more.x: a builtins.object cannot be saved; convert it to a tensor or a plain value"),
    ],
)  # fmt: skip
def test_wrong_use_is_refused(run, how, sentence):
    status, said = run(how, how=how)
    assert status == 0, said
    assert (run.path / how / "refused").read_text().startswith(sentence)


def test_the_folder_must_be_passed_on(run):
    assert run("killed", die=["step_end", 5])[0] == -signal.SIGKILL
    assert run("killed", how="not passed on")[0] == 0
    said = (run.path / "killed" / "refused").read_text()
    assert said.startswith("RuntimeError: ckptd.hf: the Trainer begins at step 0, the agent restored step 4")


def test_no_agent_is_told_and_no_step_is_invented(run):
    status, said = run("lonely", how="no agent", environment={"CKPTD_SOCKET": "/tmp/ckptd-none.sock"})
    assert status == 0, said
    assert (run.path / "lonely" / "refused").read_text().startswith("AgentUnreachable")
