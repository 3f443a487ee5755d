"""Other ways to train on a GPU, each killed and compared as gpt.py does it: torch.compile, expandable segments, CUDA
graphs, optimizers with lists. Smaller, because it is not the size that differs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from results import Part, Skip, Wrong
from story import AT_RANDOM, IN_CAPTURE, Plan, Story, device_of, place, running_agent, size_of, tell

_BACKENDS = ("inductor", "cudagraphs", "aot_eager")
_EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
_STEPS = 30
_EVERY = 3


def _plan(part: Part, **more: Any) -> Plan:
    return Plan(size_of(part, "small"), steps=_STEPS, every=_EVERY, **more)


@contextmanager
def _story(part: Part, plan: Plan) -> Iterator[Story]:
    with place(part, f"{part.name}-{plan.loop}") as folder, running_agent(part, folder) as agent:
        with Story(part, agent, folder, plan) as story:
            yield story


def _kills(part: Part) -> list[str]:
    return [IN_CAPTURE, AT_RANDOM][: part.options.kills]


def restore(part: Part) -> None:
    """The plain loop: what the others are compared with."""
    with _story(part, _plan(part)) as story:
        tell(part, story, _kills(part), reserve=0)


def compiled(part: Part) -> None:
    """The first backend that runs here, which inductor does with a C compiler only; why the others do not."""
    for backend in part.options.backend or _BACKENDS:
        with _story(part, _plan(part, loop=backend)) as story:
            if tell(part, story, _kills(part)[:1], reserve=0, prefix=f"{backend}, "):
                return


def expandable(part: Part) -> None:
    """Memory of cuMemCreate, which torch maps piece by piece."""
    if part.options.cpu:
        return part.skip("expandable segments", "torch on the CPU has none")
    with _story(part, _plan(part, environment=_EXPANDABLE)) as story:
        tell(part, story, _kills(part), reserve=0)


def optimizers(part: Part) -> None:
    """State that the new process does not have yet, in lists: it is made on the GPU."""
    for loop in ("lbfgs", "lists"):
        with _story(part, _plan(part, loop=loop)) as story:
            tell(part, story, [AT_RANDOM][: part.options.kills], reserve=0, prefix=f"{loop}, ")


def graphs(part: Part) -> None:
    """A graph that holds the whole step; then one whose replays pass no gate."""
    with _story(part, _plan(part, loop="graph")) as story:
        tell(part, story, _kills(part), reserve=0)
        part.ask("a replay without a gate is dropped as UNGATED", _ungated, part, story, needs=0)


def _ungated(values: dict[str, Any], part: Part, story: Story) -> None:
    if story.last is None:
        raise Skip("no trainer came so far")
    values.update(story.last.ask("ungated"), device=device_of(part))
    if values["dropped_because"][2] != "UNGATED":
        raise Wrong(f"the save that was held back for its gate: {values['dropped_because'][2]}, not UNGATED")
