"""A warm process that forks all ranks of a trial, as `zygote.py` forks one.

Requests are lines of JSON on stdin; the answer to each is the list of the ranks' wait statuses. When a rank fails the
others are terminated, as torchrun does.
"""

import importlib
import json
import os
import signal
import sys

import torch

from . import ranks_all, ranks_trial, zygote


def serve() -> None:
    """Until stdin ends."""
    torch.set_num_threads(1)
    zygote.warm_up()
    for name in ("torch.distributed.fsdp", "torch.distributed.optim", "torch.distributed.tensor"):
        importlib.import_module(name)
    assert len(os.listdir("/proc/self/task")) == 1, "a thread before the first fork"
    assert ranks_all.RANK_ROWS
    for line in sys.stdin:
        print(json.dumps(run_ranks(json.loads(line))), flush=True)


def run_ranks(request: dict) -> list[int]:
    """Wait statuses by rank."""
    children = {fork(request, rank): rank for rank in range(request["world"])}
    statuses: dict[int, int] = {}
    while len(statuses) < len(children):
        child, status = os.wait()
        statuses[child] = status
        if status:
            for other in children.keys() - statuses.keys():
                os.kill(other, signal.SIGTERM)
    return [statuses[child] for child in children]


def fork(request: dict, rank: int) -> int:
    """Process id of the rank."""
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        places = {"RANK": str(rank), "WORLD_SIZE": str(request["world"])}
        own = {"rank": rank, "journal": f"{request['journal']}.{rank}", "environment": places}
        own["store"] = f"{request['journal']}.store"  # where the ranks meet
        zygote.run({**request, **own}, ranks_trial.run)
    return child


if __name__ == "__main__":
    serve()
