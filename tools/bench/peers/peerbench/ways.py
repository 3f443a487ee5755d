"""The ways to save that are measured. Imports none of them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Way:
    """module, kind: its adapter. requirements: its environment; "": the shared one. durable: it reaches the disk.

    asynchronous: training goes on while it writes. ours: needs an agent, and is no peer; limit: is none either.
    nodes: agents that the ranks are spread over.
    """

    module: str
    kind: str
    requirements: str = ""
    durable: bool = True
    asynchronous: bool = True
    ours: bool = False
    limit: bool = False
    nodes: int = 1

    def adapter(self) -> Any:
        """The class; ImportError where its packages are not."""
        return getattr(importlib.import_module(f"peerbench.adapters.{self.module}"), self.kind)


PLAIN_COPY = "plain-copy"
WAYS = {
    PLAIN_COPY: Way("copy", "Copy", durable=False, limit=True),
    "ckptd": Way("ours", "Ckptd", ours=True),
    "ckptd-stays": Way("ours", "CkptdStays", ours=True),
    "torch.save": Way("files", "TorchSave", asynchronous=False),
    "safetensors": Way("files", "Safetensors", asynchronous=False),
    "dcp-thread": Way("dcp", "DcpThread"),
    "dcp-process": Way("dcp", "DcpProcess"),
    "dcp-staged": Way("dcp", "DcpStaged"),
    "torch_checkpointing": Way("torch_checkpointing", "TorchCheckpointing", "torch_checkpointing"),
    "torchsnapshot": Way("torchsnapshot", "TorchSnapshot", "torchsnapshot"),
    "dlrover-disk": Way("dlrover", "DlroverDisk", "dlrover"),
    "dlrover-memory": Way("dlrover", "DlroverMemory", "dlrover", durable=False),
    "lm-resiliency": Way("lm_resiliency", "LmResiliency", "lm-resiliency"),
    "ckptd-copies": Way("ours", "CkptdCopies", durable=False, ours=True, nodes=2),
    "lm-resiliency-copies": Way("lm_resiliency", "LmResiliencyCopies", "lm-resiliency", durable=False),
    "dcp-save": Way("dcp", "Dcp", asynchronous=False),
    "ckptd-dcp-save": Way("ours", "CkptdDcp", asynchronous=False, ours=True),
    "ckptd-dcp-staged": Way("ours", "CkptdDcpStaged", ours=True),
}
ON_DEMAND = "ckptd-copies", "lm-resiliency-copies", "dcp-save", "ckptd-dcp-save", "ckptd-dcp-staged"
STANDARD = tuple(name for name in WAYS if name not in ON_DEMAND)
