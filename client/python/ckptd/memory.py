"""What a tensor's memory is: whether it can be saved, whether its bytes are its value, whether two tensors share it."""

from __future__ import annotations

from typing import Any

import torch


def refuse_unsupported(tensor: torch.Tensor, name: str) -> None:
    """TypeError, naming the tensor and what to do, for one whose bytes are not plain memory."""
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        raise TypeError(f"{name}: it has no shape yet (a Lazy module); run one forward pass before Checkpointer(...)")
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise TypeError(f"{name}: a {tensor.layout} or quantized tensor cannot be saved; convert it to a dense one")
    if tensor.device.type not in ("cpu", "cuda"):
        raise TypeError(f"{name}: it lives on {tensor.device}; host memory and CUDA devices are captured")
    have, needed = tensor.untyped_storage().nbytes(), _reach(tensor)
    if have < needed:
        raise TypeError(
            f"{name}: its memory was given back (its storage has {have} bytes, it needs {needed}; FSDP1 and offloading "
            "do that between steps); save while it is there"
        )


def _reach(tensor: torch.Tensor) -> int:
    """Bytes from the beginning of its storage to the end of its last element."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (int(tensor.storage_offset()) + last + 1) * tensor.element_size()


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether its value is a run of bytes."""
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def identity(tensor: torch.Tensor) -> Any:
    """Equal for tied tensors. Empty ones have no address and are never tied."""
    if tensor.numel() == 0:
        return id(tensor)
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg()
