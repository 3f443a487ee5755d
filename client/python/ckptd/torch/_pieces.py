"""What one rank's part of a DCP plan is stored as.

A tensor item is a tensor of the image with the item's name and its offsets in the whole one (libckpt gives several
chunks of one name images of their own, and writes DCP_SHARDING_INFO). The items that are no tensors, pickled by the
planner with `torch.save` as DCP does it, lie back to back in one U8 tensor, whose room only ever grows: their sizes
change from save to save, and a changed shape would be a new layout. The extra document says the rest:

    {"format": 1, "parts": {}, "rng": null, "dcp": {
        "sizes": {name: shape of the whole, of tensors that are not stored whole},
        "bytes": {name: [begin, end] in the U8 tensor},
        "paths": {name: keys that lead to it in the nested state_dict}    DefaultSavePlanner's planner_data, or
        "planner": typed JSON of other planner_data}}
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed.checkpoint.planner import SavePlan, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from .. import _lib, dtypes, extra
from ..shards import is_wrapper
from ..memory import refuse_unsupported

BYTES_PREFIX = "__dcp_bytes__.rank-"
_BLOCK = 4096


class Piece(NamedTuple):
    """One tensor of this rank. `offsets`, `whole`: where it lies in the tensor of all ranks, and that one's shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    whole: tuple[int, ...]


class Pieces:
    """Everything of one save. Holds the memory that is captured, as contiguous host tensors, until `release`."""

    def __init__(self, plan: SavePlan, planner: Any, rank: int, before: Pieces | None) -> None:
        """before: what the save before stored, for the room that it had. TypeError, naming the item, for what cannot
        be stored."""
        self.results: list[WriteResult] = []
        self.room: int
        self._rank = rank
        self._pieces: list[Piece] = []
        self._tensors: list[torch.Tensor] = []
        self._addresses: list[int] = []
        self._ranges: dict[str, tuple[int, int]] = {}
        self._planner_data = plan.planner_data
        texts: list[bytes] = []
        end = 0
        for item in plan.items:
            data = planner.resolve_data(item)
            if item.type == WriteItemType.BYTE_IO:
                texts.append(data.getvalue())
                self._ranges[item.index.fqn] = (end, end := end + len(texts[-1]))
            else:
                self._add(item, data)
            self.results.append(WriteResult(item.index, self._size_of(item), rank))
        self._pack(b"".join(texts), before)
        self._addresses = [tensor.data_ptr() for tensor in self._tensors]
        names = [*self._ranges, *{piece.name for piece in self._pieces}]
        if len(names) != len(set(names)):
            raise ValueError("the plan has a tensor and a plain value of one name")

    def _add(self, item: WriteItem, data: Any) -> None:
        name, place = item.index.fqn, item.tensor_data
        assert place is not None  # it is no BYTE_IO
        tensor = plain(data, name)
        shape, offsets = tuple(place.chunk.sizes), tuple(place.chunk.offsets)
        if tuple(tensor.shape) != shape:
            if tensor.numel() or 0 not in shape:
                raise ValueError(f"{name}: the plan says {list(shape)}, the planner gives {list(tensor.shape)}")
            tensor = tensor.reshape(shape)
        if name.startswith(BYTES_PREFIX):
            raise ValueError(f"{name}: this name is reserved; rename the tensor")
        self._pieces.append(Piece(name, dtypes.string_of(tensor, name), shape, offsets, tuple(place.size)))
        self._tensors.append(tensor)

    def _size_of(self, item: WriteItem) -> int:
        if item.type == WriteItemType.BYTE_IO:
            begin, end = self._ranges[item.index.fqn]
            return end - begin
        return self._tensors[-1].nbytes

    def _pack(self, text: bytes, before: Pieces | None) -> None:
        room = before.room if before is not None else _BLOCK  # never nothing: `Link.pass_over` needs an address
        if len(text) > room:
            room = (len(text) + len(text) // 4 + _BLOCK) // _BLOCK * _BLOCK
        self.room = room
        packed = np.zeros(room, dtype=np.uint8)
        packed[: len(text)] = np.frombuffer(text, dtype=np.uint8)
        name = f"{BYTES_PREFIX}{self._rank:05d}"
        self._pieces.append(Piece(name, "U8", (room,), (0,), (room,)))
        self._tensors.append(torch.from_numpy(packed))

    @classmethod
    def nothing(cls, rank: int) -> Pieces:
        """Of a rank that has nothing to save."""
        return cls(SavePlan([]), None, rank, None)

    def __len__(self) -> int:
        return len(self._pieces)

    def same_as(self, other: Pieces) -> bool:
        """Whether layout and addresses are those of `other`."""
        return self._pieces == other._pieces and self._addresses == other._addresses

    def release(self) -> None:
        """Lets go of the memory, which nobody reads any more: copies of what is on a GPU are as big as the state."""
        self._tensors = []

    def document(self) -> bytes:
        """JSON text of the extra tensor."""
        sizes = {piece.name: piece.whole for piece in self._pieces if piece.whole != piece.shape}
        mine: dict[str, Any] = {"sizes": sizes, "bytes": self._ranges}
        if _are_paths(self._planner_data):
            mine["paths"] = self._planner_data
        elif self._planner_data is not None:
            mine["planner"] = extra.encode(self._planner_data, "planner_data")
        document = {"format": 1, "parts": {}, "rng": None, "dcp": mine}
        return json.dumps(document, separators=(",", ":")).encode("ascii")

    def view(self, document_bytes: int) -> tuple[_lib.TableView, list[Any]]:
        """libckpt's table, and the arrays it points to: keep them until the call returned."""
        pieces = self._pieces
        names = [piece.name.encode("utf-8") for piece in pieces]
        arrays: dict[str, np.ndarray] = {
            "name_ends": np.cumsum([len(name) for name in names], dtype=np.uint64),
            "dtypes": np.array([dtypes.NUMBERS[piece.dtype] for piece in pieces], dtype=np.uint8),
            "dims": np.array([len(piece.shape) for piece in pieces], dtype=np.uint32),
            "shapes": _numbers(piece.shape for piece in pieces),
            "shard_offsets": _numbers(piece.offsets for piece in pieces),
            "global_shapes": _numbers(piece.whole for piece in pieces),
            "data": np.array(self._addresses, dtype=np.uint64),
        }
        pointers = {name: array.ctypes.data_as(_lib.c_void_p) for name, array in arrays.items()}
        text = b"".join(names)
        view = _lib.TableView(count=len(pieces), names=text, extra_bytes=document_bytes, **pointers)
        return view, [text, *arrays.values()]


def check_plan(plan: SavePlan) -> None:
    """TypeError, naming it, for a tensor that the format has no dtype for; before any rank has captured anything."""
    for item in plan.items:
        data = item.tensor_data
        if data is not None and data.properties.dtype not in dtypes.FROM_TORCH:
            raise TypeError(
                f"{item.index.fqn}: {data.properties.dtype} is no dtype of the safetensors format; "
                "view it as one that is"
            )


def plain(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """Its elements in contiguous host memory: itself where they are. TypeError, naming it, for what has none."""
    found = tensor.detach()
    if found.device.type not in ("cpu", "meta"):
        found = found.cpu()
    refuse_unsupported(found, name)
    if is_wrapper(found):
        raise TypeError(f"{name}: a {type(found).__name__} wraps other tensors; put those into the state dict instead")
    return found.resolve_conj().resolve_neg().contiguous()


def _numbers(lists: Any) -> np.ndarray:
    return np.array([number for one in lists for number in one], dtype=np.uint64)


def _are_paths(data: Any) -> bool:
    """Whether JSON holds it as it is: DefaultSavePlanner's {name: (key, ...)} with keys that are text or numbers."""
    return isinstance(data, dict) and all(
        type(name) is str and type(path) is tuple and all(type(key) in (str, int) for key in path)
        for name, path in data.items()
    )
