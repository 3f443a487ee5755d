"""The dtypes of the safetensors format: their strings, their numbers in `ckpt.h`, and torch's and NumPy's names."""

from __future__ import annotations

import numpy as np
import torch

# In the order of the enum in ckpt.h. torch knows no six-bit floats; float4 packs two elements into a byte.
STRINGS = (
    "BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ",
    "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "C64", "F64", "I64", "U64",
)  # fmt: skip
NUMBERS = {text: number for number, text in enumerate(STRINGS)}

_TORCH_NAMES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "F8_E5M2": "float8_e5m2", "F8_E4M3": "float8_e4m3fn",
    "F8_E8M0": "float8_e8m0fnu", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "I16": "int16",
    "U16": "uint16", "F16": "float16", "BF16": "bfloat16", "I32": "int32", "U32": "uint32", "F32": "float32",
    "C64": "complex64", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip

# Older torch lacks some of them.
TO_TORCH: dict[str, torch.dtype] = {
    text: getattr(torch, name) for text, name in _TORCH_NAMES.items() if hasattr(torch, name)
}
FROM_TORCH: dict[torch.dtype, str] = {dtype: text for text, dtype in TO_TORCH.items()}


def string_of(tensor: torch.Tensor, name: str) -> str:
    """The format's dtype string of `tensor`. TypeError, naming it, when the format has none."""
    text = FROM_TORCH.get(tensor.dtype)
    if text is None:
        raise TypeError(f"{name}: {tensor.dtype} is no dtype of the safetensors format; view it as one that is")
    return text


def torch_of(text: str, name: str) -> torch.dtype:
    """torch's dtype for a string of the format. TypeError, naming the tensor, when this torch has none."""
    dtype = TO_TORCH.get(text)
    if dtype is None:
        raise TypeError(f"{name}: this torch ({torch.__version__}) has no dtype for {text}")
    return dtype


def from_numpy(array: np.ndarray, name: str) -> torch.Tensor:
    """A tensor over the array's memory. TypeError, naming it, for what a tensor cannot hold."""
    if array.dtype.hasobject or array.dtype.kind not in "biufc" or not array.dtype.isnative:
        raise TypeError(f"{name}: a NumPy array of {array.dtype} cannot be saved; convert it to a plain number type")
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()  # torch views neither; such an array cannot be restored in place anyway
    try:
        return torch.from_numpy(array)
    except TypeError:  # torch before 2.3 has no unsigned integers of 16 to 64 bits
        raise TypeError(f"{name}: this torch ({torch.__version__}) has no dtype for {array.dtype}") from None
