"""ckptd: a training run is killed at any moment and goes on from memory.

ck = ckptd.Checkpointer({"model": model, "optim": optimizer, "data": (data := ckptd.batches(loader, seed=0))},
                        job="gpt-small", every=50)
start = ck.restore()
for step, batch in zip(range(start, total), data):
    train_one(batch)
    ck.step(step + 1)
ck.close()
"""

from ._errors import (
    AgentUnreachable,
    CkptdError,
    LayoutMismatch,
    NotFound,
    RestoreError,
    SaveError,
)
from .batches import Batches, batches
from .checkpointer import Checkpointer
from .lazy import eager, lazy
from .names import AmbiguousName
from .open import Checkpoint, File, open
from .restore import Restored
from .save import Save
from .status import status

__version__ = "0.1.0"
__all__ = [
    "AgentUnreachable", "AmbiguousName", "Batches", "Checkpoint", "Checkpointer", "CkptdError", "File",
    "LayoutMismatch", "NotFound", "Restored", "RestoreError", "Save", "SaveError", "batches", "eager", "lazy",
    "open", "status",
]  # fmt: skip
