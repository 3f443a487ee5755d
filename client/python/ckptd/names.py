"""Canonical names: the same tensor has the same name whatever wraps the model.

Wrappers (DDP, FSDP, torch.compile, activation checkpointing) put a segment of their own into the path of every
parameter. It is stripped, so that a checkpoint of a wrapped model restores into a bare one. Optimizer state is named by
its parameter, ``<optimizer>.state.<parameter>.<key>``: positions change between runs, names do not.
"""

from __future__ import annotations

from collections.abc import Iterable

WRAPPERS = frozenset({"module", "_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module"})
RESERVED = "__ckptd_"  # names that ckptd gives itself: the extra tensor
METADATA = "__metadata__"  # reserved by safetensors


class AmbiguousName(ValueError):
    """Two different tensors would have one name."""


def canonical(path: str) -> str:
    """`path` (segments joined by dots) without the segments that wrappers add."""
    if not any(wrapper in path for wrapper in WRAPPERS):
        return path
    return ".".join(segment for segment in path.split(".") if segment not in WRAPPERS)


def join(*segments: object) -> str:
    """Segments joined by dots; empty ones vanish."""
    return ".".join(text for text in map(str, segments) if text)


def optimizer_state(optimizer: str, parameter: str, key: object) -> str:
    """Name of one state tensor: ``optim.state.layer.weight.exp_avg``."""
    return join(optimizer, "state", parameter, key)


def check_unique(names: Iterable[str], where: str = "state") -> None:
    """AmbiguousName when a name occurs twice, ValueError when it is reserved or empty."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise AmbiguousName(
                f"{where}: two tensors are called {name!r}; rename one of them or put it under another key"
            )
        if not name or name == METADATA or name.startswith(RESERVED):
            raise ValueError(f"{where}: the name {name!r} is reserved; put the tensor under another key")
        seen.add(name)
