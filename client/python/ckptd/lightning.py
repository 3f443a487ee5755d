"""Lightning's Trainer, killed at any moment, goes on with the bits it would have had; and its checkpoints in memory.

    cb = ckptd.lightning.Callback(job="ft", every=50)
    trainer = Trainer(max_epochs=10, callbacks=[cb])
    trainer.fit(model, loader)

`fit` asks the agent by itself: nothing is to be passed on. What `CheckpointIO` does stands in lightning_io.py.
"""

from __future__ import annotations

from .lightning_callback import Callback
from .lightning_io import CheckpointIO

__all__ = ["Callback", "CheckpointIO"]
