"""Reading checkpoints without an agent: mapped files, nothing copied until it is looked at.

Memory is a private mapping: writing to a tensor changes this process's copy, never the file. Checksums are not verified
here; `ckptctl verify PATH` does.
"""

from __future__ import annotations

import json
import mmap
import os
import pathlib
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from . import _errors, _lib, dtypes, extra, tree
from .header import Entry, Header

_MAX_HEADER = 100_000_000
_FORMAT_MAJOR = 1


class File(Mapping[str, torch.Tensor]):
    """One safetensors file: names, aliases included, mapped to tensors of the stored dtype and shape."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = pathlib.Path(path)
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._header = _read_header(self.path, file, size)
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY)

    @property
    def metadata(self) -> dict[str, str]:
        """`__metadata__` of the file."""
        return dict(self._header.metadata)

    def __iter__(self) -> Iterator[str]:
        yield from self._header.entries
        yield from self._header.aliases

    def __len__(self) -> int:
        return len(self._header.entries) + len(self._header.aliases)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._header.find(name) is not None

    def __getitem__(self, name: str) -> torch.Tensor:
        entry = self._header.find(name)
        if entry is None:
            raise KeyError(name)
        dtype = dtypes.torch_of(entry.dtype, name)
        if entry.begin == entry.end:
            return torch.empty(entry.shape, dtype=dtype, device="cpu")
        flat = torch.frombuffer(self._map, dtype=torch.uint8, offset=entry.begin, count=entry.end - entry.begin)
        return flat.view(dtype).view(entry.shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without touching its bytes."""
        return self._entry(name).shape

    def dtype(self, name: str) -> str:
        """dtype string of the format, also one that this torch does not have."""
        return self._entry(name).dtype

    def _entry(self, name: str) -> Entry:
        entry = self._header.find(name)
        if entry is None:
            raise KeyError(name)
        return entry

    def plain(self) -> dict[str, Any]:
        """Values that are no tensors, by path of their owner; tensors among them as tensors of this file."""
        if self._header.extra is None:
            return {}
        document = extra.loads(self._map[self._header.extra.begin : self._header.extra.end])
        return {
            path: tree.rebuild(value, self._tensor_of, lambda inner: None) for path, value in document["parts"].items()
        }

    def _tensor_of(self, ref: extra.TensorRef) -> Any:
        """Of a DTensor this rank's shard. Of another wrapper nothing: its inner tensors have names of their own."""
        if ref.wraps and ref.name not in self:
            return None
        value = self[ref.name]
        return value.numpy() if ref.is_array else value


class Checkpoint(Mapping[str, torch.Tensor]):
    """A committed step. Itself it maps the names of rank 0; `ranks[r]` are the files of rank r."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.path = directory
        manifest = read_manifest(directory)
        self.step: int = manifest["step"]
        self.attempt: int = manifest["attempt"]
        self.world_size: int = manifest["world_size"]
        self.job: str = manifest["job"]
        self.ranks: list[list[File]] = [[] for _ in range(self.world_size)]
        for item in manifest["files"]:
            self.ranks[item["rank"]].append(File(_checked(directory, item)))

    def rank(self, index: int) -> dict[str, torch.Tensor]:
        """Lazy tensors of one rank by name."""
        return {name: file[name] for file in self.ranks[index] for name in file}

    def plain(self, rank: int = 0) -> dict[str, Any]:
        """Values of one rank that are no tensors."""
        return {path: value for file in self.ranks[rank] for path, value in file.plain().items()}

    def __iter__(self) -> Iterator[str]:
        for file in self.ranks[0]:
            yield from file

    def __len__(self) -> int:
        return sum(map(len, self.ranks[0]))

    def __getitem__(self, name: str) -> torch.Tensor:
        for file in self.ranks[0]:
            if name in file:
                return file[name]
        raise KeyError(name)


def open(path_or_job: str | os.PathLike[str], *, storage: str | None = None) -> File | Checkpoint:  # noqa: A001
    """Read-only lazy tensors, no agent: a safetensors file, the folder of a step, the folder of a job, or a job's name.

    storage: folder with the jobs, for a name; else $CKPTD_STORAGE, ~/.local/share/ckptd, /var/lib/ckptd. A job gives
    its newest committed step on the lineage of the newest decided attempt. Raises NotFound, or RestoreError for a
    damaged file.
    """
    path = pathlib.Path(path_or_job)
    if path.is_file():
        return File(path)
    if (path / "manifest.json").exists():
        return Checkpoint(path)
    if (path / "attempts").is_dir():
        return Checkpoint(newest_step(path))
    if path.name == str(path):
        return Checkpoint(newest_step(job_folder(path.name, storage)))
    raise _errors.make("NOT_FOUND", f"{path_or_job}: no safetensors file, no committed step, no job")


def job_folder(name: str, storage: str | None = None) -> pathlib.Path:
    """Folder of a job, found as by `open`. NotFound when there is none."""
    roots = _roots(storage)
    for root in roots:
        if (root / name / "attempts").is_dir():
            return root / name
    raise _errors.make("NOT_FOUND", f"{name}: no safetensors file, no committed step, no job in {_named(roots)}")


def _named(roots: list[pathlib.Path]) -> str:
    return " or ".join(map(str, roots))


def step_folder(job: pathlib.Path, step: int) -> pathlib.Path:
    """Folder of that committed step: the one on the lineage of the newest decided attempt, else of the newest attempt
    that has it. NotFound when there is none."""
    try:
        on_lineage = [path for _, number, path in _committed(job, _newest_lineage(job)) if number == step]
    except _errors.NotFound:
        on_lineage = []
    others = [
        path
        for path in sorted(job.glob(f"step-{step:010d}.a*"), key=lambda path: int(path.name.partition(".a")[2] or 0))
        if (path / "manifest.json").exists() and not (path / "deleting").exists()
    ]
    if not on_lineage and not others:
        raise _errors.make("NOT_FOUND", f"{job}: no committed step {step}")
    return (on_lineage or others[::-1])[0]


def _newest_lineage(job: pathlib.Path) -> list[tuple[int, int | None]]:
    """NotFound when no attempt was decided."""
    decided = sorted((job / "attempts").glob("a*.decided.json"), key=lambda path: int(path.name[1:].split(".")[0]))
    if not decided:
        raise _errors.make("NOT_FOUND", f"{job}: no attempt was decided")
    return _lineage(decided[-1], int(decided[-1].name[1:].split(".")[0]))


def newest_step(job: pathlib.Path) -> pathlib.Path:
    """Folder of the newest committed step on the lineage of the newest decided attempt. NotFound when there is none."""
    limits = _newest_lineage(job)
    found = list(_committed(job, limits))
    if not found:
        raise _errors.make("NOT_FOUND", f"{job}: no committed step on the lineage of attempt {limits[0][0]}")
    return max(found, key=lambda item: (-item[0], item[1]))[2]


def _lineage(decision: pathlib.Path, attempt: int) -> list[tuple[int, int | None]]:
    """(attempt, last step that counts or None for all), newest first."""
    document = json.loads(decision.read_bytes())
    older = [(int(item["attempt"]), int(item["last_step"])) for item in document.get("lineage", [])]
    return [(attempt, None), *sorted((pair for pair in older if pair[0] != attempt), reverse=True)]


def _committed(job: pathlib.Path, limits: list[tuple[int, int | None]]) -> Iterator[tuple[int, int, pathlib.Path]]:
    """(position in the lineage, step, folder) of every committed step on it."""
    order = {attempt: (index, last) for index, (attempt, last) in enumerate(limits)}
    for path in job.glob("step-*.a*"):
        step, _, attempt = path.name.removeprefix("step-").partition(".a")
        if not (step.isdigit() and attempt.isdigit() and int(attempt) in order):
            continue
        index, last = order[int(attempt)]
        marked = (path / "deleting").exists() or not (path / "manifest.json").exists()
        if not marked and (last is None or int(step) <= last):
            yield index, int(step), path


def _roots(storage: str | None) -> list[pathlib.Path]:
    named = storage or os.environ.get("CKPTD_STORAGE")
    if named:
        return [pathlib.Path(named)]
    return [pathlib.Path.home() / ".local/share/ckptd", pathlib.Path("/var/lib/ckptd")]


def read_manifest(directory: pathlib.Path) -> dict[str, Any]:
    """The manifest of a step, its own checksum checked before anything of it is believed. RestoreError."""
    text = (directory / "manifest.json").read_bytes()
    document = json.loads(text)
    if document.get("format_major", 0) > _FORMAT_MAJOR:
        raise _errors.make("NEWER_VERSION", f"{directory}/manifest.json: format {document['format_major']}")
    mark = text.rfind(b'"crc32c"')
    covered = text[: text.rfind(b",", 0, mark) + 1]
    if mark < 0 or _lib.library().ckpt_crc32c(0, covered, len(covered)) != document["crc32c"]:
        raise _errors.make("CORRUPT", f"{directory}/manifest.json: its checksum is wrong")
    return document


def _checked(directory: pathlib.Path, item: dict[str, Any]) -> pathlib.Path:
    """Path of a file that the manifest names, with the size that the manifest binds."""
    name = item["name"]
    if "/" in name or name in ("", ".", ".."):
        raise _errors.make("CORRUPT", f"{directory}/manifest.json: {name!r} is no file name")
    path = directory / name
    if not path.exists() or path.stat().st_size != item["bytes"]:
        raise _errors.make("CORRUPT", f"{path}: missing, or not {item['bytes']} bytes")
    return path


def _read_header(path: pathlib.Path, file: Any, size: int) -> Header:
    prefix = file.read(8)
    length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
    if not 2 <= length <= min(_MAX_HEADER, size - 8):
        raise _errors.make("CORRUPT", f"{path}: no safetensors file")
    header = Header()
    try:
        header.add(file.read(length), 8 + length)
    except ValueError as failed:
        raise _errors.make("CORRUPT", f"{path}: {failed}") from failed
    entries = [*header.entries.values(), *([header.extra] if header.extra else [])]
    if any(entry.end > size for entry in entries):
        raise _errors.make("CORRUPT", f"{path}: shorter than its header says")
    return header
