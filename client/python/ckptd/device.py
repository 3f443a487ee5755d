"""What is asked of torch about GPUs: where a tensor lives, and on which stream it has its value.

Streams are the handles (`cudaStream_t`) that libckpt takes; 0 is the legacy default stream.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

HOST = -1


def ordinal(tensor: torch.Tensor) -> int:
    """Number of the GPU in this process, or HOST."""
    return tensor.get_device() if tensor.is_cuda else HOST


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous memory for a copy of `tensor`, on its device."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)


def current_streams(ordinals: Iterable[int]) -> list[tuple[int, int]]:
    """(GPU, the stream on which this thread enqueues work for it) of each."""
    return [(number, torch.cuda.current_stream(number).cuda_stream) for number in ordinals]


def handle_of(stream: Any) -> int:
    """The handle of a `torch.cuda.Stream`, or of a number that is one. TypeError for anything else."""
    handle = getattr(stream, "cuda_stream", stream)
    if not isinstance(handle, int):
        raise TypeError(f"gate(stream=...): a {type(stream).__name__} is no CUDA stream")
    return handle
