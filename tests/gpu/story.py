"""One job whose trainers and agent are killed, and whose every loss, restored tensor and last tensor is compared with a
run that nobody disturbed."""

from __future__ import annotations

import json
import math
import pathlib
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import installation
from agent import IN_MEMORY_ONLY, Agent
from child import Child, Who
from results import Part, Skip, Wrong
from sizes import SIZES, Size, fitting

IN_CAPTURE, AT_RANDOM = "trainer, in a capture", "trainer, at a random moment"
AGENT, BOTH = "agent", "trainer and agent"
_MEMORY = pathlib.Path("/dev/shm")
_PATIENCE = 120.0  # seconds: a restore from storage
_JOB = "killed"


@dataclass(frozen=True)
class Plan:
    """loop: a name of loops.LOOPS. environment: of the trainers, besides what every launch needs."""

    size: Size
    loop: str = "plain"
    steps: int = 60
    every: int = 4
    environment: dict[str, str] = field(default_factory=dict)


@contextmanager
def place(part: Part, name: str) -> Iterator[pathlib.Path]:
    """A folder for what a part writes, gone afterwards."""
    folder = part.options.out / f"work-{name}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def running_agent(part: Part, folder: pathlib.Path, flush_every: int = IN_MEMORY_ONLY) -> Iterator[Agent]:
    """Started. Skip where there is no agent or no torch; NoDriver, unless it shall be the CPU."""
    installation.require_torch()
    if not part.options.cpu:
        with Child("importer.py", part.left, part.log) as asked:  # what torch says of that takes seconds
            asked.ask("start")
    (folder / "storage").mkdir()
    with Agent(installation.find(), memory(part), folder / "storage", part.log, flush_every) as agent:
        agent.start()
        yield agent


def memory(part: Part) -> pathlib.Path:
    """The tmpfs for the agent."""
    return part.options.memory or _MEMORY


def size_of(part: Part, name: str = "full") -> Size:
    """As the command line says, else this one; smaller where memory is."""
    return fitting(SIZES[part.options.size or name], memory(part))


def device_of(part: Part) -> str:
    return "cpu" if part.options.cpu else "cuda"


class Story:
    """Each method is a case, in this order: undisturbed, resumed as often as wanted, ended, from_storage.

    A context manager: no trainer is left.
    """

    def __init__(self, part: Part, agent: Agent, folder: pathlib.Path, plan: Plan) -> None:
        self._part, self._agent, self._folder, self._plan = part, agent, folder, plan
        self._random = random.Random(part.options.seed)
        self._losses: dict[int, str] = {}
        self._digests: dict[int, str] = {}
        self._captured = 0  # newest step of which a trainer was told that it is captured
        self._killed: float | None = None
        self._after = ""  # what was killed last
        self._at = 0  # and at which step
        self._spare: Child | None = self._child()  # loads torch while another one trains
        self.last: Child | None = None

    def __enter__(self) -> Story:
        return self

    def __exit__(self, *_: object) -> None:
        for child in (self._spare, self.last):
            if child is not None:
                child.kill()

    def _child(self) -> Child:
        environment = installation.find().environment(**self._plan.environment)
        return Child("gpt_trainer.py", self._part.left, self._part.log, Who(environment=environment), _PATIENCE)

    def _start(self, values: dict[str, Any], job: str, last: bool = False) -> Child:
        """A trainer that is at its first step. last: no other one follows."""
        child, self._spare = self._spare or self._child(), None if last else self._child()
        try:
            told = child.ask("start", size=self._plan.size.values(), device=device_of(self._part), job=job,
                             loop=self._plan.loop, every=self._plan.every, socket=self._agent.socket)  # fmt: skip
            values["device"] = device_of(self._part)
            if "skip" in told:
                raise Skip(told["skip"])
        except BaseException:
            child.kill()
            raise
        values.update(told)
        return child

    def undisturbed(self, values: dict[str, Any]) -> None:
        """The run that all others are compared with, without ckptd. Wrong where torch does not repeat itself."""
        values.update(self._plan.size.values(), parameters=self._plan.size.parameters(), seed=self._part.options.seed)
        with self._start(values, job="") as child:
            seconds = []
            for step in range(self._plan.every, self._plan.steps + 1, self._plan.every):
                for line in _lines(child, step - self._plan.every, step):
                    self._losses[line["step"]] = line["loss"]
                    seconds.append(line["seconds"])
                values.update(child.ask("digest", path=self._file(step)))
                self._digests[step] = values["digest"]
            values["seconds_a_step"] = sorted(seconds)[len(seconds) // 2]
            if not all(math.isfinite(float.fromhex(loss)) for loss in self._losses.values()):
                raise Wrong("a loss is not finite: nothing can be told from it")
            again = child.ask("again", to=self._plan.every)["losses"]
            values["repeats"] = again == [self._losses[step + 1] for step in range(self._plan.every)]
            if not values["repeats"]:
                raise Wrong("torch does not repeat itself here: a resumed run cannot be compared")
        values["losses"] = [float.fromhex(self._losses[step]) for step in (1, self._plan.steps)]

    def _file(self, step: int | str) -> str:
        return str(self._folder / f"digests-{step}.json")

    def resumed(self, values: dict[str, Any], what: str) -> None:
        """One launch, in which `what` is killed; the next one shows what was left."""
        with self._resume(values) as child:
            self._train(values, child, what, values["step"] + self._plan.every * self._random.choice((1, 2)))

    def ended(self, values: dict[str, Any]) -> None:
        """The last launch: to the end, and onto storage."""
        with self._resume(values) as child:
            for _ in self._compared(values, _lines(child, values["step"], self._plan.steps)):
                pass
            self._compare(values, child, self._plan.steps, "at_the_end")
            values.update(child.ask("finish"))
            if not values["durable"]:
                raise Wrong("the last save is not on storage")

    def from_storage(self, values: dict[str, Any]) -> None:
        """After a loss of all memory. This trainer stays: `last`."""
        self._agent.kill()
        self._agent.lose_region()
        self._agent.start()
        self.last = self._resume(values, last=True)
        if (values["step"], values["source"]) != (self._plan.steps, "storage"):
            raise Wrong(f"step {values['step']} from {values['source']}, not {self._plan.steps} from storage")

    def _resume(self, values: dict[str, Any], last: bool = False) -> Child:
        child = self._start(values, _JOB, last)
        try:
            if self._killed is not None:
                values.update(after=self._after, after_step=self._at, that_save_lost=values["step"] < self._at)
                values["seconds_from_kill"] = time.monotonic() - self._killed
            if values["step"] < self._captured:
                raise Wrong(f"step {self._captured} was captured, the trainer got step {values['step']}")
            if values["step"]:
                self._compare(values, child, values["step"], "restored")
            for name in ("moved", "on_another_device"):
                if values[name]:
                    raise Wrong(f"restored tensors, {name}: {', '.join(values[name])}")
                del values[name]
        except BaseException:
            child.kill()
            raise
        return child

    def _compare(self, values: dict[str, Any], child: Child, step: int, name: str) -> None:
        values[f"equal_{name}"] = child.ask("digest", path=self._file("now"))["digest"] == self._digests[step]
        if not values[f"equal_{name}"]:
            wanted, found = (json.loads(pathlib.Path(self._file(one)).read_text()) for one in (step, "now"))
            differ = [one for one in wanted if found.get(one) != wanted[one]]
            raise Wrong(f"step {step}: {len(differ)} of {len(wanted)} tensors differ, first {differ[:3]}")

    def _compared(self, values: dict[str, Any], lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The same lines. Wrong at the first loss that differs."""
        saves: dict[str, int] = values.setdefault("saves", {})
        values["losses_compared"] = 0
        for line in lines:
            wanted = self._losses[line["step"]]
            if line["loss"] != wanted:
                raise Wrong(f"step {line['step']}: the loss is {line['loss']}, undisturbed {wanted}")
            values["losses_compared"] += 1
            self._captured = max(self._captured, line["captured"])
            if "save" in line:
                saves[line["save"]] = saves.get(line["save"], 0) + 1
            yield line

    def _train(self, values: dict[str, Any], child: Child, what: str, at: int) -> None:
        """Until `what` is killed: at step `at`, or at the first save after it that has just begun."""
        late = 0.0
        if what == AT_RANDOM:
            at, late = at + self._random.randrange(self._plan.every), self._random.random()
        killed = None
        for line in self._compared(values, _lines(child, values["step"], self._plan.steps)):
            if killed is not None:
                if line["captured"] > killed:
                    return self._kill(values, child)  # it saves again
            elif line["step"] >= at and _is_time(what, line, values["step"]):
                values["killed_at_step"] = killed = line["step"]
                self._after, self._at = what, killed
                self._disturb(values, child, what, late * line["seconds"])
                if what != AGENT:
                    return None
        if killed is not None:
            raise Wrong(f"nothing was captured after the agent was killed; {values['saves']}")
        raise Skip(f"the run ended before that; {values['saves']}")

    def _disturb(self, values: dict[str, Any], child: Child, what: str, late: float) -> None:
        time.sleep(late)
        if what in (AGENT, BOTH):
            self._agent.kill()
        if what != AGENT:
            self._kill(values, child)
        if what in (AGENT, BOTH):
            values["agent_start_seconds"] = self._agent.start()

    def _kill(self, values: dict[str, Any], child: Child) -> None:
        self._killed = time.monotonic()
        values["seconds_to_end"] = child.kill()  # its memory is given back within


def _is_time(what: str, line: dict[str, Any], began: int) -> bool:
    """In a capture, or where the next launch has something new to resume from."""
    return line["captured"] > began if what == AT_RANDOM else line.get("save") == "capturing"


def _lines(child: Child, done: int, to: int) -> Iterator[dict[str, Any]]:
    """What the trainer tells of each step after `done` up to `to`."""
    if done < to:
        child.post("train", to=to)
    for _ in range(done, to):
        yield child.answer()[0]


def tell(part: Part, story: Story, kills: list[str], reserve: float, prefix: str = "") -> bool:
    """Asks all cases; whether each was ok. reserve: share of the part's seconds kept for the last launches."""
    if not part.ask(f"{prefix}undisturbed", story.undisturbed, needs=0):
        return False
    began = part.left()
    good = True
    for index, what in enumerate(kills):
        launch = (began - part.left()) / index if index else 0.0
        case = f"{prefix}kill {index + 1}: {what}"
        good &= part.ask(case, story.resumed, what, needs=launch + part.seconds * reserve)
    good &= part.ask(f"{prefix}to the end", story.ended, needs=0)
    return good & part.ask(f"{prefix}all memory lost: from storage", story.from_storage, needs=0)
