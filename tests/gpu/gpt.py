"""A GPT of about a billion parameters, killed at random steps, in captures, and with its agent; bit for bit."""

from __future__ import annotations

from results import Part
from story import AGENT, AT_RANDOM, BOTH, IN_CAPTURE, Plan, Story, place, running_agent, size_of, tell

_KILLS = [IN_CAPTURE, AGENT, AT_RANDOM, IN_CAPTURE, BOTH, AT_RANDOM, IN_CAPTURE]
_RESERVE = 0.3


def run(part: Part) -> None:
    plan = Plan(size_of(part))
    with place(part, part.name) as folder, running_agent(part, folder) as agent:
        with Story(part, agent, folder, plan) as story:
            tell(part, story, _KILLS[: part.options.kills], _RESERVE)
