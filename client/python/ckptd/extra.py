"""Typed JSON: what a checkpoint holds beside its tensors.

Plain JSON loses tuples, sets, non-string keys, bytes and non-finite floats, and with them a ``MultiStepLR`` or
``random.getstate()``. Here a value that JSON has keeps its JSON form, and every other one is an object with exactly
the keys ``"$"`` (its tag) and ``"v"`` (its content):

    tuple, set, frozenset     v is a list (sets are sorted by their text: equal states give equal bytes)
    dict, odict, counter      v is a list of [key, value]; a dict goes here only if a key is no string or is "$"
    defaultdict               v is [name of the factory, list of [key, value]]
    bytes, bytearray          v is base64
    int                       v is decimal text, beyond +-2^53
    float                     v is "nan", "inf" or "-inf"
    complex                   v is [real, imaginary]
    scalar                    v is [NumPy dtype, base64 of its bytes]
    tensor, array             v is the name of a tensor of the image; a NumPy array is stored as one
    wrapper                   likewise, of a tensor that wraps others (a DTensor): only one that is there can be filled
    placed                    v is [name of a tensor of the image, device]: one that did not live in host memory
    object                    v is the path of an object that is saved under its own path

Nothing is pickled, and a type that is not listed is a TypeError that names its path.
"""

from __future__ import annotations

import base64
import json
import math
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

_SAFE_INT = 2**53  # beyond it a reader that keeps numbers as doubles would round
_MAX_DEPTH = 200
_FACTORIES = {
    "none": None,
    "int": int,
    "float": float,
    "list": list,
    "dict": dict,
    "set": set,
    "str": str,
    "bool": bool,
}


@dataclass(frozen=True)
class TensorRef:
    """Stands in a tree of plain values for the tensor of that name in the image.

    `is_array`: it was a NumPy array. `wraps`: it wraps other tensors, as a DTensor does. `device`: where it lived, or
    empty for host memory, wrappers, and references as they were written before devices were told.
    """

    name: str
    is_array: bool = False
    wraps: bool = False
    device: str = ""


@dataclass(frozen=True)
class ObjectRef:
    """Stands in a tree of plain values for an object that saves itself under that path."""

    path: str


def dumps(value: Any, path: str = "") -> str:
    """Typed JSON text of `value`, ASCII only. TypeError, with the path, for a type that it cannot hold."""
    return json.dumps(encode(value, path), separators=(",", ":"), allow_nan=False)


def loads(text: str | bytes) -> Any:
    """The value that `dumps` was given. ValueError for text that `dumps` cannot have written."""
    return decode(json.loads(text))


def pad(text: str, capacity: int) -> bytes:
    """`text` as exactly `capacity` bytes, padded with spaces. ValueError when it does not fit."""
    data = text.encode("ascii")
    if len(data) > capacity:
        raise ValueError(f"the plain values need {len(data)} bytes, the image has room for {capacity}")
    return data.ljust(capacity)


def encode(value: Any, path: str = "", depth: int = 0) -> Any:
    """`value` as what `json.dumps` can write. `path` is only for the message of the TypeError."""
    if depth > _MAX_DEPTH:
        raise TypeError(f"{path[:200]}: nested deeper than {_MAX_DEPTH} levels, or a cycle")
    encoder = _ENCODERS.get(type(value))
    if encoder is not None:
        return encoder(value, path, depth + 1)
    if isinstance(value, np.generic):
        return _scalar(value, path)
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{path or 'state'}: a {kind} cannot be saved; convert it to a tensor or a plain value")


def _tagged(tag: str, content: Any) -> dict[str, Any]:
    return {"$": tag, "v": content}


def _same(value: Any, path: str, depth: int) -> Any:
    return value


def _int(value: int, path: str, depth: int) -> Any:
    return value if -_SAFE_INT <= value <= _SAFE_INT else _tagged("int", str(value))


def _float(value: float, path: str, depth: int) -> Any:
    return value if math.isfinite(value) else _tagged("float", repr(value))


def _complex(value: complex, path: str, depth: int) -> Any:
    return _tagged("complex", [_float(value.real, path, depth), _float(value.imag, path, depth)])


def _binary(tag: str) -> Callable[..., Any]:
    return lambda value, path, depth: _tagged(tag, base64.b64encode(value).decode("ascii"))


def _scalar(value: np.generic, path: str) -> Any:
    if value.dtype.kind not in "biufcmMSU":
        raise TypeError(f"{path}: a NumPy scalar of dtype {value.dtype} cannot be saved")
    return _tagged("scalar", [value.dtype.str, base64.b64encode(value.tobytes()).decode("ascii")])


def is_plain_run(values: Any) -> bool:
    """Whether JSON holds every item as it is. Long runs (a generator's 625 ints) then cost no Python call an item."""
    kinds = set(map(type, values))
    if kinds <= {str, bool, type(None)}:
        return True
    if kinds == {int}:
        return min(values) >= -_SAFE_INT and max(values) <= _SAFE_INT
    return kinds == {float} and all(map(math.isfinite, values))


def _items(values: Any, path: str, depth: int) -> list[Any]:
    if is_plain_run(values):
        return list(values)
    return [encode(item, f"{path}[{index}]", depth) for index, item in enumerate(values)]


def _list(value: list[Any], path: str, depth: int) -> Any:
    return _items(value, path, depth)


def _tuple(value: tuple[Any, ...], path: str, depth: int) -> Any:
    return _tagged("tuple", _items(value, path, depth))


def _set(tag: str) -> Callable[..., Any]:
    def encode_set(value: Any, path: str, depth: int) -> Any:
        items = [encode(item, f"{path}{{}}", depth) for item in value]
        return _tagged(tag, sorted(items, key=lambda item: json.dumps(item)))

    return encode_set


def _pairs(value: Any, path: str, depth: int) -> list[Any]:
    return [[encode(key, f"{path} key", depth), encode(item, f"{path}[{key!r}]", depth)] for key, item in value.items()]


def _dict(value: dict[Any, Any], path: str, depth: int) -> Any:
    if set(map(type, value)) <= {str} and "$" not in value:
        return {key: encode(item, f"{path}.{key}" if path else key, depth) for key, item in value.items()}
    return _tagged("dict", _pairs(value, path, depth))


def _ordered(tag: str) -> Callable[..., Any]:
    return lambda value, path, depth: _tagged(tag, _pairs(value, path, depth))


def _defaultdict(value: Any, path: str, depth: int) -> Any:
    for name, factory in _FACTORIES.items():
        if value.default_factory is factory:
            return _tagged("defaultdict", [name, _pairs(value, path, depth)])
    raise TypeError(f"{path}: a defaultdict of {value.default_factory!r} cannot be saved; use a plain dict")


def _reference(value: TensorRef, path: str, depth: int) -> Any:
    if value.device:
        return _tagged("placed", [value.name, value.device])
    return _tagged("array" if value.is_array else "wrapper" if value.wraps else "tensor", value.name)


def _decode_placed(content: Any) -> TensorRef:
    name, device = content
    return TensorRef(name, device=device)


_ENCODERS: dict[type, Callable[..., Any]] = {
    type(None): _same, bool: _same, str: _same, int: _int, float: _float, complex: _complex,
    bytes: _binary("bytes"), bytearray: _binary("bytearray"), list: _list, tuple: _tuple, set: _set("set"),
    frozenset: _set("frozenset"), dict: _dict, OrderedDict: _ordered("odict"), Counter: _ordered("counter"),
    defaultdict: _defaultdict,
    TensorRef: _reference,
    ObjectRef: lambda value, path, depth: _tagged("object", value.path),
}  # fmt: skip


def decode(value: Any) -> Any:
    """Inverse of `encode`. ValueError for a tag or a content that `encode` does not write."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$" not in value:
        return {key: decode(item) for key, item in value.items()}
    if set(value) != {"$", "v"} or value["$"] not in _DECODERS:
        raise ValueError(f"typed JSON: unknown tag {value['$']!r}; written by a newer ckptd?")
    try:
        return _DECODERS[value["$"]](value["v"])
    except (TypeError, KeyError, IndexError) as error:
        raise ValueError(f"typed JSON: bad content of a {value['$']}: {error}") from error


def _decode_pairs(content: Any) -> list[tuple[Any, Any]]:
    return [(decode(key), decode(item)) for key, item in content]


def _decode_scalar(content: Any) -> np.generic:
    dtype, data = np.dtype(content[0]), base64.b64decode(content[1], validate=True)
    if dtype.hasobject or dtype.itemsize != len(data):
        raise ValueError(f"typed JSON: a NumPy scalar of {dtype} cannot have {len(data)} bytes")
    return np.frombuffer(data, dtype=dtype)[0] if data else dtype.type()


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda v: tuple(map(decode, v)),
    "set": lambda v: set(map(decode, v)),
    "frozenset": lambda v: frozenset(map(decode, v)),
    "dict": lambda v: dict(_decode_pairs(v)),
    "odict": lambda v: OrderedDict(_decode_pairs(v)),
    "counter": lambda v: Counter(dict(_decode_pairs(v))),
    "defaultdict": lambda v: defaultdict(_FACTORIES[v[0]], _decode_pairs(v[1])),
    "bytes": lambda v: base64.b64decode(v, validate=True),
    "bytearray": lambda v: bytearray(base64.b64decode(v, validate=True)),
    "int": int,
    "float": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__,
    "complex": lambda v: complex(decode(v[0]), decode(v[1])),
    "scalar": _decode_scalar,
    "tensor": TensorRef,
    "array": lambda v: TensorRef(v, True),
    "wrapper": lambda v: TensorRef(v, wraps=True),
    "placed": _decode_placed,
    "object": ObjectRef,
}
