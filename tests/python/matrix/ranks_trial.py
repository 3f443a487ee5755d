"""One rank of one run: as `trial.py`, in a process group."""

from __future__ import annotations

import traceback
from typing import Any

import torch.distributed as dist

from .ranks import RANK_ROWS
from .ranks_rules import RANK_RULES
from .rows import ROWS
from .rules import RULES
from .trial import HARMLESS, Trial, is_refusal


class RankTrial(Trial):
    """More of the request: rank, world, store (file where the ranks meet), victim (rank that dies; None: all)."""

    harmless = (*HARMLESS, "BELOW_FLOOR")  # another rank had no memory for its layout yet

    def die(self, n: int, inside: bool) -> None:
        if self.request.get("victim") in (None, self.request["rank"]):
            super().die(n, inside)


def run(request: dict[str, Any]) -> None:
    """In a process of its own. Never raises: what goes wrong is in the journal."""
    ROWS.update(RANK_ROWS)
    RULES.update(RANK_RULES)
    trial = RankTrial(request)
    try:
        meeting = f"file://{request['store']}"
        dist.init_process_group("gloo", init_method=meeting, rank=request["rank"], world_size=request["world"])
        trial.run()
        dist.destroy_process_group()
    except Exception as error:  # a refusal is a verdict
        trial.journal.write("refused" if is_refusal(error) else "crashed", f"{type(error).__name__}: {error}")
        traceback.print_exc()
