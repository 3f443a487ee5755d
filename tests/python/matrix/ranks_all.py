"""Every row of several ranks; importing this makes the table complete."""

from . import ranks_ddp, ranks_fsdp1, ranks_fsdp2  # noqa: F401
from .ranks import RANK_ROWS  # noqa: F401
