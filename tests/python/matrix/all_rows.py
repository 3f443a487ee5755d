"""Every row; importing this makes the table complete."""

from . import rows_compile, rows_data, rows_loops, rows_models, rows_optimizers, rows_tensors, rows_wrappers  # noqa: F401
from .rows import ROWS  # noqa: F401
