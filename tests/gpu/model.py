"""A GPT in plain torch as it is trained today: bf16 weights, fp32 master weights and moments, tied embeddings."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from sizes import Size
from torch import nn
from torch.nn import functional

_DROPOUT = 0.1
_BLOCK = 1 << 26  # bytes of a tensor that are digested at once
_ODD = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


class Block(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self._heads = size.heads
        self.before, self.between = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attend, self.merge = nn.Linear(size.width, 3 * size.width), nn.Linear(size.width, size.width)
        self.up, self.down = nn.Linear(size.width, 4 * size.width), nn.Linear(4 * size.width, size.width)

    def forward(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        x = x + functional.dropout(self._attention(self.before(x), hidden), _DROPOUT, self.training)
        mixed = self.down(functional.gelu(self.up(self.between(x))))
        return x + functional.dropout(mixed, _DROPOUT, self.training)

    # Written out: the backward pass of the fused kernels is not the same twice on every GPU.
    def _attention(self, x: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        query, key, value = self.attend(x).view(count, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-2, -1) * (width // self._heads) ** -0.5
        mixed = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ value
        return self.merge(mixed.transpose(1, 2).reshape(count, length, width))


class GPT(nn.Module):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.words = nn.Embedding(size.words, size.width)
        self.places = nn.Embedding(size.length, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.last = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.words, bias=False)
        self.head.weight = self.words.weight
        later = torch.ones(size.length, size.length, dtype=torch.bool).triu(1)
        self.register_buffer("hidden", later, persistent=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each token from those before it."""
        x = self.words(tokens[:, :-1]) + self.places.weight
        for block in self.blocks:
            x = block(x, self.hidden)
        return functional.cross_entropy(self.head(self.last(x)).float().flatten(0, 1), tokens[:, 1:].flatten())


Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class Training:
    """Model, master weights and optimizer on `device`; `state` is what a Checkpointer gets.

    capturable: the optimizer may go into a CUDA graph. exact: each launch computes the same bits. make: the optimizer,
    instead of AdamW.
    """

    def __init__(
        self, size: Size, device: str, capturable: bool = False, exact: bool = True, make: Make | None = None
    ) -> None:
        self._size, self.device = size, device
        torch.use_deterministic_algorithms(exact)
        torch.manual_seed(0)
        with torch.device(device):
            self.model = GPT(size).to(torch.bfloat16)
        held = [parameter.detach().float() for parameter in self.model.parameters()]
        self.masters = nn.ParameterDict({f"p{index:04}": nn.Parameter(one) for index, one in enumerate(held)})
        masters = list(self.masters.values())
        adamw = {"lr": 3e-4, "foreach": True, "capturable": capturable}
        self.optimizer = make(masters) if make else torch.optim.AdamW(masters, **adamw)
        self.state: dict[str, Any] = {"model": self.model, "masters": self.masters, "optim": self.optimizer}

    def tokens(self, n: int) -> torch.Tensor:
        """Those of step n."""
        generator = torch.Generator().manual_seed(n)
        shape = (self._size.micro, self._size.length + 1)
        found = torch.randint(self._size.words, shape, generator=generator)
        return found.pin_memory().to(self.device, non_blocking=True) if self.device != "cpu" else found

    def gradients(self, tokens: torch.Tensor, forward: Any = None) -> torch.Tensor:
        """Forward and backward; the loss."""
        loss = (self.model if forward is None else forward)(tokens)
        loss.backward()
        return loss.detach()

    def update(self) -> None:
        """Of the master weights, in the optimizer; then of the weights, which no hook tells of: see `ckptd.lazy`."""
        weights, masters = list(self.model.parameters()), list(self.masters.values())
        for weight, master in zip(weights, masters, strict=True):
            master.grad = weight.grad.float()
            weight.grad = None
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)

    def timed_step(self, n: int, passes: int) -> float:
        """Step n, with so many forward and backward passes; seconds until the GPU is done."""
        began = time.perf_counter()
        for _ in range(passes):
            self.gradients(self.tokens(n))
        self.update()
        self.synchronize()
        return time.perf_counter() - began

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from self.model.state_dict().items()
        yield from self.masters.state_dict().items()
        for index, held in enumerate(self.optimizer.state.values()):
            yield from _inside(f"optim.{index:04}", held)

    def digests(self) -> dict[str, str]:
        """By name of the tensor."""
        return {name: digest(tensor) for name, tensor in self.tensors()}

    def state_bytes(self) -> int:
        """Of the distinct tensors, as an image holds them."""
        return sum({tensor.data_ptr(): tensor.nbytes for _, tensor in self.tensors()}.values())

    def synchronize(self) -> None:
        if self.device != "cpu":
            torch.cuda.synchronize()


def _inside(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of nested dicts and lists."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _inside(f"{name}.{key}", item)


def digest(tensor: torch.Tensor) -> str:
    """64 bits of all bytes and their places. Sums of integers: the same in any order, on any device."""
    raw = tensor.detach().reshape(-1).view(torch.uint8)
    found = [raw.numel()]
    for at in range(0, raw.numel(), _BLOCK):
        part = raw[at : at + _BLOCK]
        part = functional.pad(part, (0, -part.numel() % 8)) if part.numel() % 8 else part
        words = part.view(torch.int64)
        mixed = (words ^ torch.arange(words.numel(), device=words.device).mul_(_ODD[0])).mul_(_ODD[1])
        mixed ^= mixed >> 29
        found.append(int(mixed.mul_(_ODD[2]).sum()))
    return hashlib.blake2b(repr(found).encode(), digest_size=8).hexdigest()


def digest_of_all(digests: dict[str, str]) -> str:
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()[:16]
