"""`lightning` or `pytorch_lightning`, whichever the program uses: the same code under two names."""

from __future__ import annotations

import sys
from typing import Any


def _package() -> Any:
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        import pytorch_lightning

        return pytorch_lightning
    try:
        import lightning.pytorch

        return lightning.pytorch
    except ImportError:
        import pytorch_lightning

        return pytorch_lightning


pl = _package()


def _plain_io() -> Any:
    if pl.__name__ == "pytorch_lightning":
        from lightning_fabric.plugins import TorchCheckpointIO as found
    else:
        from lightning.fabric.plugins import TorchCheckpointIO as found
    return found


TorchCheckpointIO = _plain_io()
