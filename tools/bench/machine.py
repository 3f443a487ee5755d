"""What figures depend on: the machine, and when."""

from __future__ import annotations

import datetime
import os
import pathlib
import platform
import subprocess
from typing import Any


def now() -> str:
    """UTC, as in a document."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def machine(folder: pathlib.Path) -> dict[str, Any]:
    """folder: on the disk that is measured."""
    cpu = [line.split(":", 1)[1].strip() for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines()
           if line.startswith("model name")]  # fmt: skip
    file_system = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True).stdout.strip()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {"cpu": cpu[0] if cpu else platform.machine(), "cores": os.cpu_count(), "memory": memory,
            "kernel": platform.release(), "python": platform.python_version(), "file_system": file_system,
            "load": os.getloadavg()[0]}  # fmt: skip
