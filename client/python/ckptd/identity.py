"""Who this process is: job, rank and world size."""

from __future__ import annotations

import os
import re
from typing import NamedTuple

import torch

_JOB = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Place(NamedTuple):
    """Rank of this process among `world` of them, and who said so."""

    rank: int
    world: int
    source: str


def job_name(job: str | None) -> str:
    """The argument, else `$CKPTD_JOB`. ValueError when neither names a job.

    torchrun's run id is `none` or new at each launch, Slurm's job id changes at each sbatch: neither is used.
    """
    name = job if job is not None else os.environ.get("CKPTD_JOB")
    if not name:
        raise ValueError(
            "job: give a name that stays the same over restarts: Checkpointer(..., job='gpt-small') or CKPTD_JOB"
        )
    if not _JOB.fullmatch(name) or name in (".", ".."):
        raise ValueError(f"job: {name!r} must be 1 to 128 of letters, digits, dot, underscore and minus")
    return name


def place(rank: int | None, world_size: int | None) -> Place:
    """From arguments, torch.distributed, RANK/WORLD_SIZE, Slurm, else 0 of 1. ValueError when two of them disagree."""
    found = [source for source in (_argument(rank, world_size), _torch(), _environment()) if source is not None]
    for other in found[1:]:
        if other[:2] != found[0][:2]:
            raise ValueError(
                f"rank: {found[0].source} says {found[0].rank} of {found[0].world}, {other.source} says "
                f"{other.rank} of {other.world}; make them agree"
            )
    chosen = found[0] if found else Place(0, 1, "default")
    if not 0 <= chosen.rank < chosen.world:
        raise ValueError(f"rank: {chosen.rank} is not within world size {chosen.world} ({chosen.source})")
    return chosen


def _argument(rank: int | None, world_size: int | None) -> Place | None:
    if rank is None and world_size is None:
        return None
    if rank is None or world_size is None:
        raise ValueError("rank and world_size: give both or neither")
    return Place(rank, world_size, "the argument")


def _torch() -> Place | None:
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    return Place(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _environment() -> Place | None:
    """RANK/WORLD_SIZE first: under torchrun Slurm's variables describe the launcher, not this process.

    srun counts the tasks of its step in SLURM_STEP_NUM_TASKS; SLURM_NTASKS may still be that of the allocation.
    """
    for rank, world in (
        ("RANK", "WORLD_SIZE"),
        ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ):
        if rank in os.environ and world in os.environ:
            return Place(int(os.environ[rank]), int(os.environ[world]), rank)
    return None
