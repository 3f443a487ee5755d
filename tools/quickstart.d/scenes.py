"""The scenes: a small GPT is trained, something dies, it goes on; each run must equal an undisturbed one bit for bit.

usage: scenes.py WORK_FOLDER [--keep] [--only NAME]...
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from report import Row, print_table
from runs import BUILD, ROOT, Agent, Failed, Run, kill_tree, say, wait_for

JOB = "gpt-small"


class Stage:
    """What a scene gets: a running agent, a run, the undisturbed run to compare with, and the row it fills."""

    def __init__(self, work, name, title, reference):
        self.row = Row(title)
        self.agent = Agent(work / name)
        self.run = Run(work / name / "out", reference.ranks, self.agent, JOB)
        self.reference = reference

    def resume(self, died_at, died_when, attempt=2):
        """Waits until the next attempt trains, and fills the row with what it says."""
        restored = self.run.wait_event("restored", attempt)
        first = self.run.wait_event("first step", attempt)
        self.row.resumed = f"step {restored['step']}, {restored['source']}"
        self.row.lost = died_at - restored["step"]
        self.row.seconds = first["time"] - died_when
        self.row.restore_seconds = restored["seconds"]
        say(f"  goes on from step {restored['step']} ({restored['source']}), {self.row.lost} steps are done again")
        return restored

    def pause_and_kill(self, step):
        """Lets the trainer wait at this step until its last save is durable; then trainer and agent die at once."""
        self.run.launch("--pause-at", str(step))
        paused = self.run.wait_event("paused")
        say(f"  trainer waits at step {paused['step']}; ckptctl status says:")
        print(self.agent.ctl("status", JOB))
        saved = [event["step"] for event in self.run.events("save") if event["state"] != "dropped"][-1]
        self._wait_durable(saved)
        (self.run.out / "go").touch()
        return self.kill_both()

    def _wait_durable(self, step):
        wait_for(f"step {step} to be durable", 90, lambda: step in self.agent.steps(JOB), every=0.05)
        say(f"  durable on storage: steps {self.agent.steps(JOB)}")

    def kill_both(self):
        died = self.run.last_step(), time.time()
        kill_tree(self.run.process)
        self.agent.kill()
        say(f"  SIGKILL to trainer and agent at step {died[0]}")
        return died


def capture(stage):
    stage.run.launch("--die-at", "20")
    killed = stage.run.wait_event("killed")
    stage.run.process.wait()
    say(f"  SIGKILL at step {killed['step']}, its save was {killed['state']}; starting the trainer again")
    stage.run.launch()
    stage.resume(killed["step"], killed["time"])


def one_of_two(stage):
    stage.run.launch("--die-at", "15", "--die-rank", "1")
    killed = wait_killed(stage.run, rank=1)
    say(f"  rank 1: SIGKILL at step {killed['step']}, its save was {killed['state']}; torchrun starts both again")
    stage.resume(killed["step"], killed["time"])


def wait_killed(run, rank):
    return wait_for(f"rank {rank} to die", 300, lambda: run.events("killed", rank))[0]


def flush(stage):
    run, agent = stage.run.launch(), stage.agent
    run.wait_event("first step")
    step, died = cut_a_flush(run, agent)
    say(f"  SIGKILL to the agent while it flushes step {step}; training goes on, the agent starts again")
    agent.start()
    wait_for(f"step {step} to be durable", 60, lambda: step in agent.steps(JOB))
    stage.row.resumed, stage.row.lost, stage.row.seconds = f"step {step}, flush went on", 0, time.time() - died
    say(f"  step {step} is durable {stage.row.seconds:.1f} s after the kill; the trainer never stopped")


def cut_a_flush(run, agent, tries=5):
    """SIGKILL to the agent in the middle of a flush: (step, when). A fast disk may be done first: then the next save."""
    for _ in range(tries):
        wait_for("a flush", 300, lambda: flushed_now(agent) or run.ended(), every=0.001)
        if run.ended():
            raise Failed(f"the training ended before a flush was cut, see {run.out}/trainer.log")
        died = time.time()
        agent.kill()
        step = flushed_now(agent)  # asked again: now nothing moves any more
        if step:
            return step, died
        say(f"  step {agent.captured_steps()[-1]} was durable before the SIGKILL landed; once more at the next save")
        agent.start()
    raise Failed(f"{tries} times the step was durable before the SIGKILL landed: no flush was cut")


def flushed_now(agent):
    """The newest captured step while its folder is on storage and its manifest is not, else None."""
    captured = agent.captured_steps()[-1:]
    newest_durable = max(agent.steps(JOB), default=0)  # not the set: retention deletes older ones
    begun = agent.steps(JOB, committed=False)
    return next((step for step in captured if step > newest_durable and step in begun), None)


def together(stage):
    stage.run.launch()
    wait_for("step 18", 300, lambda: stage.run.last_step() >= 18)
    died = stage.kill_both()
    stage.agent.start()
    stage.run.launch()
    stage.resume(*died)


def reboot(stage):
    died = stage.pause_and_kill(17)
    stage.agent.lose_region()
    say("  the region is gone, as after a reboot")
    stage.agent.start()
    stage.run.launch()
    if "storage" not in stage.resume(*died)["source"]:
        raise Failed("it did not come from storage")


def damaged(stage):
    # So late, because it needs two checkpoints: the first saves are dropped while the memory is still being prepared.
    died = stage.pause_and_kill(27)
    stage.agent.lose_region()
    older, newest = stage.agent.steps(JOB)[-2:]
    file = max((stage.agent.storage / JOB).glob(f"step-{newest:010d}.a*/*.safetensors"))
    flip_bytes(file)
    say(f"  the region is gone, and 64 bytes of {file.parent.name}/{file.name} are flipped")
    stage.agent.start()
    stage.run.launch()
    restored = stage.resume(*died)
    if restored["step"] != older:
        raise Failed(f"resumed from step {restored['step']}, not from {older}")
    if str(newest) not in restored["skipped"]:
        raise Failed(f"it did not say that step {newest} was skipped: {restored['skipped']!r}")
    say(f"  it says: {restored['skipped']}")


def flip_bytes(path):
    with open(path, "r+b") as file:
        middle = path.stat().st_size // 2
        file.seek(middle)
        bytes_there = file.read(64)
        file.seek(middle)
        file.write(bytes(255 - one for one in bytes_there))


SCENES = [
    ("capture", capture, 1, "trainer killed in the middle of a capture"),
    ("one-of-two", one_of_two, 2, "one of two ranks killed"),
    ("flush", flush, 1, "agent killed during a flush"),
    ("together", together, 2, "trainers and agent killed together"),
    ("reboot", reboot, 1, "region gone, as after a reboot"),
    ("damaged", damaged, 2, "newest checkpoint damaged, region gone"),
]


def play(work, name, scene, title, reference):
    say(f"Scene: {title} ({reference.ranks} rank{'s' * (reference.ranks > 1)})")
    stage = Stage(work, name, title, reference)

    def on_stage():
        say(f"  agent serves after {1000 * stage.agent.start():.0f} ms")
        scene(stage)

    try:
        judge(stage, on_stage)
    finally:
        stage.agent.remove()
    return stage.row


def judge(stage, scene):
    """Plays it and fills the row's verdict; no trainer is left."""
    try:
        scene()
        stage.run.finish()
        different = stage.run.differences(stage.reference)
        stage.row.verdict = "bit-exact" if not different else f"DIFFERENT: {', '.join(different[:3])}"
    except Failed as error:
        stage.row.verdict = f"FAILED: {error}"
    finally:
        stage.run.kill()
    say(f"  {stage.row.verdict}")


def undisturbed(work, ranks, *extra):
    say(f"The undisturbed run to compare with: {ranks} rank{'s' * (ranks > 1)}, no ckptd")
    run = Run(work / f"undisturbed-{ranks}", ranks)
    try:
        return run.launch(*extra).finish()
    finally:
        run.kill()  # when it was interrupted


def keep(work):
    """Leaves an agent with one finished job, and says how to play with it."""
    agent = Agent(work / "kept")
    agent.start()
    run = Run(work / "kept" / "out", 1, agent, JOB).launch().finish()
    print(f"""
The agent runs on (pid {agent.process.pid}); job {JOB} has a checkpoint in {agent.storage}.

  export CKPTD_SOCKET={agent.socket} CKPTD_LIB={BUILD}/lib/libckpt.so PYTHONPATH={ROOT}/client/python
  {BUILD}/bin/ckptctl status --agent {agent.socket.parent}/admin.sock
  {sys.executable} {ROOT}/tools/quickstart.d/train.py --job {JOB} --steps 1000 --out {run.out}

The last line trains on; kill it and start it again.

To end it: kill {agent.process.pid}; rm -r {agent.region} {work}
""")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--keep", action="store_true")
    parser.add_argument("--only", action="append", choices=[scene[0] for scene in SCENES])
    args = parser.parse_args()
    work = args.work.resolve()
    shutil.rmtree(work, ignore_errors=True)
    chosen = [scene for scene in SCENES if not args.only or scene[0] in args.only]
    references, rows = {}, []
    for name, scene, ranks, title in chosen:
        if ranks not in references:
            references[ranks] = undisturbed(work, ranks)
        rows.append(play(work, name, scene, title, references[ranks]))
    good = print_table(rows)
    print("Seconds to resume: from the death to the first new step; most of it is Python importing torch.\n", flush=True)
    if args.keep:
        keep(work)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
