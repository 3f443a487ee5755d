"""Where a load reads from, and the reading itself.

One rank: the agent offers the step (from its memory, or from storage through it) and its bytes are read from there.
Several ranks need parts of each other (DCP stores what is replicated once), so the agent decides the step for all, and
the bytes are read from storage: a step that is in memory only is waited for, as the agent is writing it.
"""

from __future__ import annotations

import io
import json
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem

from .. import _errors, _lib
from ..header import Header
from ..open import job_folder, newest_step, read_manifest, step_folder
from ..status import status
from ._catalog import Catalog, Place
from ._link import Deadline, Link
from ._stored import Stored

_LOOK_AGAIN = 0.02  # seconds between two looks for a manifest
_BATCH = 256 << 20  # bytes of memory of ours that a load uses at most, or one tensor


class Offered:
    """This rank's slot as the agent offers it."""

    def __init__(self, held: Link) -> None:
        self._link = held

    def headers(self) -> list[tuple[bytes, int]]:
        """(text, offset of the tensors in the slot) of each image."""
        return self._link.headers()

    def read(self, boxes: np.ndarray) -> None:
        """Fills memory; a failure is reported, so that the agent offers another copy or step next."""
        failed = self._link.read(boxes)
        if failed:
            sentence = _lib.sentence()
            self._link.settle(failed, sentence)
            raise _errors.make(_errors.code_name(failed), sentence, _errors.RestoreError)


class Source:
    """One step of a job. `identity`: equal on all ranks that read the same."""

    def __init__(self, step: int, attempt: int, name: str, images: list[Any], held: Link | None, what: str) -> None:
        self.step = step
        self.name = name
        self.identity = f"step {step} of attempt {attempt}"
        self._images = images
        self._link = held
        self._what = what
        self._catalog: Catalog | None = None

    @classmethod
    def stored(cls, folder: pathlib.Path) -> Source:
        """A committed step on storage. RestoreError when its manifest or a sidecar is damaged."""
        try:
            manifest = read_manifest(folder)
            images = [Stored(folder, manifest, rank) for rank in range(manifest["world_size"])]
            return cls(manifest["step"], manifest["attempt"], "storage", images, None, str(folder))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise _errors.make("CORRUPT", f"{folder}/manifest.json: {type(error).__name__}: {error}") from error

    @classmethod
    def resumed(
        cls, held: Link, step: int | None, storage: str | None, deadline: Deadline, connect_timeout: float
    ) -> Source:
        """What the agent decides for all ranks: `step`, or the newest. NotFound when nothing exists."""
        want = _lib.WANT_NEWEST if step is None else _lib.WANT_STEP
        try:
            view = held.join(want, step or 0, deadline, connect_timeout)
        except (_errors.LayoutMismatch, _errors.NotFound):  # of another world size, or not on this history
            folder = _elsewhere(held.job, step, storage)
            if folder is None:
                raise
            return cls.stored(folder)
        if view.snapshot_attempt == 0:
            held.settle()
            raise _errors.make("NOT_FOUND", f"job {held.job}: nothing was ever saved")
        found, attempt = view.snapshot_step, view.snapshot_attempt
        if held.world == 1:
            name = _lib.SOURCES[view.source] if view.source < len(_lib.SOURCES) else "unknown"
            return cls(found, attempt, name, [Offered(held)], held, f"job {held.job} step {found}")
        held.loaded()
        return cls.stored(_committed(held, found, attempt, storage, deadline))

    def catalog(self) -> Catalog:
        """What all ranks have."""
        if self._catalog is None:
            found = Catalog(self._what)
            for rank, image in enumerate(self._images):
                found.add_rank(rank, *self._described(image))
            self._catalog = found
        return self._catalog

    def _described(self, image: Any) -> tuple[list[Header], dict[str, Any]]:
        headers = []
        for text, offset in image.headers():
            headers.append(Header())
            headers[-1].add(text, offset)
        entry = next((header.extra for header in headers if header.extra is not None), None)
        if entry is None:
            return headers, {}
        data = np.empty(entry.end - entry.begin, dtype=np.uint8)
        image.read(np.array([[data.ctypes.data, entry.begin, len(data)]], dtype=np.uint64))
        document = json.loads(data.tobytes())
        return headers, document if isinstance(document, dict) else {}

    def load(self, plan: LoadPlan, planner: LoadPlanner) -> None:
        """Fills what the plan names, rank by rank in the order of the bytes."""
        places = self.catalog().places
        wanted: dict[int, list[tuple[int, int, Place, ReadItem]]] = {}
        for item in plan.items:
            place = places.get(item.storage_index)
            if place is None:
                raise _errors.make("CORRUPT", f"{self._what}: no {item.storage_index.fqn}")
            wanted.setdefault(place.rank, []).append((*_span(place, item), place, item))
        for rank, items in sorted(wanted.items()):
            batch = _Batch(self._images[rank], planner)
            for begin, size, place, item in sorted(items, key=lambda row: row[:2]):
                batch.add(begin, size, place, item)
            batch.run()
        if self._link is not None:
            with self._link.lock:
                self._link.loaded()


class _Batch:
    """Reads of one image: straight into the target where it is contiguous host memory of that dtype."""

    def __init__(self, image: Any, planner: LoadPlanner) -> None:
        self._image, self._planner = image, planner
        self._boxes: list[tuple[int, int, int]] = []
        self._after: list[Callable[[], object]] = []
        self._end = self._held = 0

    def add(self, begin: int, size: int, place: Place, item: ReadItem) -> None:
        """Items come in the order of their bytes."""
        if begin < self._end or self._held > _BATCH:
            self.run()
        if item.type == LoadItemType.BYTE_IO:
            data = np.empty(size, dtype=np.uint8)
            address = data.ctypes.data
            self._after.append(lambda: self._planner.load_bytes(item, io.BytesIO(data.tobytes())))
        else:
            address = self._tensor(place, item)
        if size:
            self._boxes.append((address, begin, size))
            self._end = begin + size
        self._held += size

    def _tensor(self, place: Place, item: ReadItem) -> int:
        target = self._planner.resolve_tensor(item)
        memory = target.detach()
        if memory.size() != item.lengths:
            raise ValueError(f"{item.dest_index.fqn}: {list(memory.size())} here, {list(item.lengths)} in the plan")
        rows = tuple(item.lengths[:1]) + place.shape[1:]
        if rows != tuple(item.lengths) or memory.dtype != place.dtype or not _is_plain(memory):
            read = torch.empty(rows, dtype=place.dtype, device="cpu")
            part = read
            for axis in range(1, len(rows)):
                part = part.narrow(axis, item.storage_offsets[axis], item.lengths[axis])
            self._after.append(lambda: memory.copy_(part))
            self._after.append(lambda: self._planner.commit_tensor(item, target))
            return read.data_ptr()
        self._after.append(lambda: self._planner.commit_tensor(item, target))
        return memory.data_ptr()

    def run(self) -> None:
        """Reads what was added."""
        self._image.read(np.array(self._boxes, dtype=np.uint64).reshape(-1, 3))
        for action in self._after:
            action()
        self._boxes, self._after = [], []
        self._end = self._held = 0


def _is_plain(tensor: torch.Tensor) -> bool:
    host = tensor.device.type == "cpu" and type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
    return host and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _span(place: Place, item: ReadItem) -> tuple[int, int]:
    """(where, how many bytes): the stored rows that an item needs, or all of a pickled value."""
    if place.dtype is None or not place.shape:
        return place.begin, place.end - place.begin
    row = math.prod(place.shape[1:]) * place.dtype.itemsize
    inside = all(a >= 0 and a + n <= s for a, n, s in zip(item.storage_offsets, item.lengths, place.shape))
    if not inside or len(item.lengths) != len(place.shape):
        raise ValueError(f"{item.storage_index.fqn}: {list(item.lengths)} is not within {list(place.shape)}")
    return place.begin + item.storage_offsets[0] * row, item.lengths[0] * row


def find_folder(job: str, step: int | None, storage: str | None) -> pathlib.Path:
    """Folder of a committed step, the newest if none is named. NotFound."""
    folder = job_folder(job, storage)
    return newest_step(folder) if step is None else step_folder(folder, step)


def _elsewhere(job: str, step: int | None, storage: str | None) -> pathlib.Path | None:
    try:
        return find_folder(job, step, storage or _agents_root(None))
    except _errors.NotFound:
        return None


def _agents_root(socket: str | None) -> str | None:
    """Where the agent has its jobs; None when ckptctl is not there to ask."""
    try:
        return status(socket=socket).storage.root
    except (_errors.CkptdError, OSError, AttributeError, ValueError):
        return None


def _committed(held: Link, step: int, attempt: int, storage: str | None, deadline: Deadline) -> pathlib.Path:
    """Folder of exactly that snapshot, once it is committed."""
    named = storage or _agents_root(held.socket)
    name = f"step-{step:010d}.a{attempt:04d}"
    while True:
        try:
            folder = job_folder(held.job, named) / name
            if (folder / "manifest.json").exists():
                return folder
        except _errors.NotFound:
            folder = pathlib.Path(named or ".") / held.job / name
        if not deadline.left:
            raise _errors.make(
                "TIMEOUT", f"{folder}: not there after {deadline.seconds:.0f} s; step {step} is in the agent's memory "
                f"(ckptctl status tells whether it is being written, ckptctl flush {held.job} has it written), or the "
                "folder of the storage is another one: StorageReader(storage=...)"
            )  # fmt: skip
        time.sleep(_LOOK_AGAIN)
