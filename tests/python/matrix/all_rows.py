"""Every row; importing this makes the table complete."""

from . import (  # noqa: F401
    rows_compile,
    rows_data,
    rows_frameworks,
    rows_loops,
    rows_models,
    rows_optimizers,
    rows_tensors,
    rows_wrappers,
)
from .rows import ROWS  # noqa: F401
