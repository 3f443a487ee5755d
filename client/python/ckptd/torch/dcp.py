"""torch.distributed.checkpoint through the agent: a StorageWriter, a StorageReader and a stager.

writer, reader = dcp.StorageWriter(job="gpt"), dcp.StorageReader(job="gpt")     # from ckptd.torch import dcp
start = reader.newest()                                                         # 0 only if nothing was ever saved
if start:
    torch.distributed.checkpoint.load(state_dict, storage_reader=reader)
torch.distributed.checkpoint.async_save(state_dict, checkpoint_id=f"step-{n}", storage_writer=writer)

Every rank gives the same arguments. Sizes are bytes, times seconds. What goes wrong is an exception of `ckptd` on the
rank where it did; DCP hands it to all of them inside its CheckpointException.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import threading
from typing import Any

import torch
import torch.distributed.checkpoint as _dcp
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult

from .. import _errors, _lib
from ..identity import Place, job_name, place
from ._link import Deadline, Link, link
from ._pieces import Pieces, check_plan
from ._source import Source, find_folder
from ._staging import Stager, Staged, captured

__all__ = ["Stager", "StorageReader", "StorageWriter"]

_LEVELS = {"captured": _lib.CAPTURED, "durable": _lib.DURABLE}
_BEGIN_TIMEOUT = 60.0  # seconds until torch's thread begins the save that async_save has just handed to it


def step_of(checkpoint_id: str | os.PathLike[str]) -> int:
    """The step that a checkpoint_id names: its last digits ("step-100", "/x/100"). ValueError when it has none."""
    name = pathlib.PurePath(os.fspath(checkpoint_id)).name
    found = re.fullmatch(r"step-(\d+)\.a\d+", name) or re.search(r"(\d+)$", name)
    if found is None:
        raise ValueError(
            f"checkpoint_id: {os.fspath(checkpoint_id)!r} ends with no step number; name it like 'step-100', or give "
            "step= to the storage writer or reader"
        )
    return int(found.group(1))


class _Ours:
    """What writer and reader share: whose checkpoint it is, and the link to the agent."""

    def __init__(
        self, job: str | None, step: int | None, agent: str | None, storage: str | None, process_group: Any,
        rank: int | None, world_size: int | None, timeout: float, connect_timeout: float,
    ) -> None:  # fmt: skip
        if (rank is None) != (world_size is None):
            raise ValueError("rank and world_size: give both or neither")
        self.job = job_name(job)
        self._step = step
        self._agent, self._storage = agent, storage
        self._group = process_group
        self._rank, self._world = rank, world_size
        self._timeout, self._connect_timeout = timeout, connect_timeout
        self.checkpoint_id: str | os.PathLike[str] | None = None

    def _place(self) -> Place:
        if self._rank is not None and self._world is not None:
            return Place(self._rank, self._world, "the argument")
        if self._group is not None:
            distributed = torch.distributed
            group = self._group
            return Place(distributed.get_rank(group), distributed.get_world_size(group), "the process group")
        return place(None, None)

    def _link(self) -> Link:
        where = self._place()
        return link(self.job, where.rank, where.world, self._agent, self._storage, self._connect_timeout)

    def _agree(self, ranks: int) -> None:
        """ValueError when DCP has plans of another number of ranks than the job."""
        where = self._place()
        if ranks != where.world:
            raise ValueError(
                f"job {self.job}: DCP runs with {ranks} ranks, {where.source} says {where.world}; give the storage "
                "writer and reader the same process_group, or rank=0 and world_size=1 with no_dist=True"
            )

    def __reduce__(self) -> Any:
        raise TypeError(
            f"ckptd.torch.dcp.{type(self).__name__} cannot go to another process: the agent copies the memory of this "
            "one; use AsyncCheckpointerType.THREAD"
        )

    def close(self, timeout: float = 600.0) -> bool:
        """Waits until the last save is on storage, then leaves the agent. False if it is not. Saves after it join
        again."""
        return self._link().close(timeout)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it names a step."""
        try:
            return step_of(checkpoint_id) >= 0
        except ValueError:
            return False


class StorageWriter(_Ours, _dcp.StorageWriter):
    """Saves through the agent: `dcp.save(sd, checkpoint_id="step-100", storage_writer=StorageWriter(job="gpt"))`.

    job: name of the run, the same over restarts; else $CKPTD_JOB.
    step: of the next save; else the last digits of the checkpoint_id.
    until: "durable": `dcp.save` returns, and the future of `dcp.async_save` is done, when the checkpoint is on storage.
    "captured": when it is in the agent's memory on every rank; the agent writes it even if the trainer dies.
    restart: start this job afresh although checkpoints exist.
    agent: socket of the agent; "auto" starts one for this user when none answers.
    storage: folder of an agent that "auto" starts.
    process_group: the one that is given to `dcp.save`. rank, world_size: instead of torch.distributed's.
    timeout: seconds for a save. connect_timeout: seconds until an agent answers at all.

    It is a stager as well: `dcp.async_save` returns when this rank's state is captured, and it may change then.
    """

    _synchronize_after_execute = True
    should_synchronize_after_execute = True

    def __init__(
        self, job: str | None = None, *, step: int | None = None, until: str = "durable", restart: bool = False,
        agent: str | None = None, storage: str | None = None, process_group: Any = None, rank: int | None = None,
        world_size: int | None = None, timeout: float = 1800.0, connect_timeout: float = 10.0,
    ) -> None:  # fmt: skip
        super().__init__(job, step, agent, storage, process_group, rank, world_size, timeout, connect_timeout)
        if until not in _LEVELS:
            raise ValueError(f"until={until!r}: 'durable' or 'captured'")
        self._level = _LEVELS[until]
        self._restart = restart
        self._staged: Staged | None = None
        self._now = threading.local()  # `.step`: of the save that this thread runs

    # ---- StorageWriter

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new checkpoint begins. ValueError for a checkpoint_id without a step."""
        self._begin()
        self.checkpoint_id = checkpoint_id
        self._now.step = None
        if checkpoint_id is not None and self._step is None:
            self._now.step = step_of(checkpoint_id)

    def storage_meta(self) -> Any:
        """None; the first thing that a save asks for."""
        self._begin()
        return None

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """ValueError without a step."""
        self._collective = kwargs.get("use_collectives", True)
        self._number()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """TypeError, naming it, for a tensor that cannot be stored."""
        check_plan(plan)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator. ValueError when DCP and the job have different ranks."""
        if self._collective:
            self._agree(len(plans))
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future[list[WriteResult]]:
        """Captures this rank's part and waits as `until` says. SaveError, AgentUnreachable."""
        deadline, step, held = Deadline(self._timeout), self._number(), self._link()
        with held.lock:
            held.enter(step, self._restart, deadline, self._connect_timeout)
            try:
                pieces = Pieces(plan, planner, held.rank, held.pieces)
            except Exception:
                held.pass_over(step, Pieces.nothing(held.rank))
                raise
            held.capture(step, pieces, deadline)
        captured()
        held.wait(step, self._level, deadline)
        future: torch.futures.Future[list[WriteResult]] = torch.futures.Future()
        future.set_result(pieces.results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """The agent has committed the checkpoint, or will. `storage_data` tells the rank that has each item."""
        metadata.storage_data = {result.index: result.storage_data for of_rank in results for result in of_rank}

    def _number(self) -> int:
        step = self._step if self._step is not None else getattr(self._now, "step", None)
        if step is None:
            raise ValueError("checkpoint_id: none was given; name the step: dcp.save(..., checkpoint_id='step-100')")
        return step

    # ---- AsyncStager

    def stage(self, state_dict: Any) -> Any:
        """The live state dict; `async_save` then waits in `synchronize_staging` until it is captured."""
        self._staged = Staged(state_dict)
        return state_dict

    def synchronize_staging(self) -> None:
        """Returns when the state may change. A save that failed tells it by its future."""
        staged = self._staged
        if staged is None:
            return
        begun = staged.begun.wait(_BEGIN_TIMEOUT)
        self._staged = None
        if not begun:
            raise RuntimeError(f"dcp.async_save has not begun to save after {_BEGIN_TIMEOUT:.0f} s")
        staged.exception()

    def _begin(self) -> None:
        if self._staged is not None:
            self._staged.begin()

    def __reduce__(self) -> Any:
        self._begin()
        return super().__reduce__()


class StorageReader(_Ours, _dcp.StorageReader):
    """Loads what `StorageWriter` (or `ckptd.Checkpointer`) saved:
    `dcp.load(sd, checkpoint_id="step-100", storage_reader=StorageReader(job="gpt"))`; without an id the newest step.

    resume: True: this process goes on training from it. It joins the job's next attempt, so every rank gets one and the
    same step, also one that is in memory only, and later saves go on above it. False: reads committed steps from
    storage, needs no agent and disturbs nobody: evaluation beside a running job, export, another world size.
    storage: folder with the jobs; else $CKPTD_STORAGE, the agent's own, ~/.local/share/ckptd, /var/lib/ckptd.
    timeout: seconds for the decision of all ranks, and for a step that is in memory only to reach storage.
    The rest as for `StorageWriter`.

    After a load `step` and `source` tell what was read from where. A checkpoint of another world size is read from
    storage, and the attempt is not joined: go on with StorageWriter(restart=True), or under another job name.
    """

    def __init__(
        self, job: str | None = None, *, step: int | None = None, resume: bool = True, agent: str | None = None,
        storage: str | None = None, process_group: Any = None, rank: int | None = None, world_size: int | None = None,
        timeout: float = 120.0, connect_timeout: float = 10.0,
    ) -> None:  # fmt: skip
        super().__init__(job, step, agent, storage, process_group, rank, world_size, timeout, connect_timeout)
        self._resume = resume
        self._source: Source | None = None
        self._found: Source | None = None  # by newest(), for the load that follows
        self._failure: Exception | None = None
        self.step = 0
        self.source = "none"

    def newest(self) -> int:
        """The step that a load without checkpoint_id reads; 0 only if nothing was ever saved. Collective in effect."""
        try:
            self._found = self._find(None)
        except _errors.NotFound:
            return 0
        return self._found.step

    # ---- StorageReader

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """A new load begins."""
        self.checkpoint_id = checkpoint_id

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Finds the step and rebuilds what DCP knows of it. NotFound, AgentUnreachable, RestoreError.

        torch 2.9 and newer swallow what this raises and ask again with `rank=`: the failure is told by
        `set_up_storage_reader` then.
        """
        if self._failure is not None and "rank" in kwargs:
            return Metadata({})
        self._failure = None
        try:
            self._source = self._find(self.checkpoint_id)
            return self._source.catalog().metadata()
        except Exception as failed:
            self._failure = failed
            raise

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raises what `read_metadata` found."""
        failed, self._failure = self._failure, None
        if failed is not None:
            raise failed

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Says which step this rank reads."""
        return dataclasses.replace(plan, storage_data=self._require().identity)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator. ValueError when the ranks chose different steps."""
        chosen = sorted({str(plan.storage_data) for plan in plans})
        if len(chosen) > 1:
            raise ValueError(
                f"job {self.job}: the ranks found different newest steps: {', '.join(chosen)}; name one: "
                "checkpoint_id='step-...'"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future[None]:
        """Reads what the plan needs; every checksum is compared. RestoreError for damage."""
        source = self._require()
        source.load(plan, planner)
        self.step, self.source = source.step, source.name
        self._source = None
        future: torch.futures.Future[None] = torch.futures.Future()
        future.set_result(None)
        return future

    # ---- inside

    def _require(self) -> Source:
        if self._source is None:
            raise RuntimeError("StorageReader: read_metadata() comes first")
        return self._source

    def _find(self, checkpoint_id: str | os.PathLike[str] | None) -> Source:
        """The step that is wanted, in the agent's memory or on storage."""
        found, self._found = self._found, None
        if found is not None and checkpoint_id is None and self._step is None:
            return found
        if checkpoint_id is not None and (pathlib.Path(checkpoint_id) / "manifest.json").exists():
            return Source.stored(pathlib.Path(checkpoint_id))
        step = self._step
        if step is None and checkpoint_id is not None:
            step = step_of(checkpoint_id)
        if self._resume:
            held = self._link()
            with held.lock:
                return Source.resumed(held, step, self._storage, Deadline(self._timeout), self._connect_timeout)
        return Source.stored(find_folder(self.job, step, self._storage))
