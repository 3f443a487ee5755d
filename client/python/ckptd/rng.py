"""Generators: Python, NumPy, torch on the CPU and on each CUDA device.

They are captured eagerly in `step()` and applied last in `restore()`: whatever restoring itself draws does not count.
States are bytes in the extra tensor, not tensors of the image, since every rank has its own.
"""

from __future__ import annotations

import random
import sys
import warnings
from array import array
from typing import Any

import torch


def tensor_bytes(state: torch.Tensor) -> bytes:
    """A generator's state (uint8, any length, on the CPU) as bytes."""
    return state.numpy().tobytes()


def tensor_of(data: bytes) -> torch.Tensor:
    """Inverse of `tensor_bytes`; owns its memory."""
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def capture() -> dict[str, Any]:
    """States of all global generators, as values of the typed JSON. About 40 microseconds."""
    states: dict[str, Any] = {"python": _python_capture(), "torch": tensor_bytes(torch.get_rng_state())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        states["numpy"] = _numpy_capture(numpy)
    if torch.cuda.is_initialized() and (found := torch.cuda.get_rng_state_all()):
        states["cuda"] = list(map(tensor_bytes, found))
        states["cuda_current"] = torch.cuda.current_device()
    return states


def apply(states: dict[str, Any]) -> list[str]:
    """Sets the global generators. Returns sentences about states that this process cannot take (fewer GPUs)."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(array("I", words)), gauss))
    torch.set_rng_state(tensor_of(states["torch"]))
    if "numpy" in states:
        import numpy

        kind, keys, *rest = states["numpy"]
        numpy.random.set_state((kind, numpy.frombuffer(keys, dtype=numpy.uint32), *rest))
    return _apply_cuda(states.get("cuda", []), states.get("cuda_current"))


def _python_capture() -> tuple[Any, ...]:
    version, words, gauss = random.getstate()
    return version, array("I", words).tobytes(), gauss  # 32-bit words: a tenth of the time of 625 numbers as text


def _numpy_capture(numpy: Any) -> tuple[Any, ...]:
    kind, keys, *rest = numpy.random.get_state()
    return (kind, keys.tobytes(), *rest)


def _apply_cuda(states: list[bytes], current: int | None) -> list[str]:
    """To each device what was saved under its number; to the one in use what was saved of the one in use then.

    current: the number of that; None in a checkpoint that does not tell it."""
    if not states:
        return []
    count = torch.cuda.device_count()
    here = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # nothing is initialized for this
    wanted = dict(enumerate(states[:count]))
    if count and current is not None:
        wanted[here] = states[current]
    for number, state in wanted.items():
        torch.cuda.set_rng_state(tensor_of(state), number)
    told = f"generators of {len(states)} CUDA devices were saved, this process sees {count}"
    if here in wanted:
        return [f"{told}: those of the others are not restored"] if count < len(states) else []
    told += "; that of the device in use is not restored: start with the CUDA_VISIBLE_DEVICES of before"
    warnings.warn(f"ckptd: {told}", RuntimeWarning, stacklevel=2)
    return [told]


def is_generator(value: Any) -> bool:
    """A generator object of torch, NumPy or Python."""
    if isinstance(value, (torch.Generator, random.Random)):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState))


def generator_state(generator: Any) -> Any:
    """State of one generator object that the user put into `state`, or that a loader draws from; plain values."""
    if isinstance(generator, torch.Generator):
        return tensor_bytes(generator.get_state())
    if isinstance(generator, random.Random):
        return generator.getstate()
    return _bits(generator).state


def set_generator_state(generator: Any, state: Any) -> None:
    """Inverse of `generator_state`; the object keeps its device and kind."""
    if isinstance(generator, torch.Generator):
        generator.set_state(tensor_of(state))
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        _bits(generator).state = state


def generator_kind(generator: Any) -> str:
    """Its type in words, which `new_generator` knows unless it is a class of somebody else's."""
    if type(generator) is torch.Generator:
        return f"torch.Generator on {generator.device.type}"
    if type(generator) is random.Random:
        return "random.Random"
    numpy = sys.modules.get("numpy")
    for name in ("Generator", "RandomState"):
        if numpy is not None and type(generator) is getattr(numpy.random, name):
            return f"numpy.random.{name}"
    return type(generator).__qualname__


def new_generator(kind: str, state: Any) -> Any:
    """One of that kind, which takes `state`; None where the kind is not known."""
    library, _, name = kind.rpartition(".")
    if kind.startswith("torch.Generator on "):
        return torch.Generator(kind.rpartition(" ")[2])
    if kind == "random.Random":
        return random.Random()
    if library != "numpy.random":
        return None
    import numpy

    bits = getattr(numpy.random, state["bit_generator"], None)
    known = isinstance(bits, type) and issubclass(bits, numpy.random.BitGenerator)
    return getattr(numpy.random, name)(bits()) if known else None


def _bits(generator: Any) -> Any:
    """What a NumPy generator draws its bits from."""
    return generator.bit_generator if hasattr(generator, "bit_generator") else generator._bit_generator
