"""The ckptd under test: the bundle that this folder lies in, else a build tree of its repository."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from dataclasses import dataclass

from results import Skip

HERE = pathlib.Path(__file__).resolve().parent
_REPRODUCIBLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Installation:
    """Paths of the agent's program, of libckpt and of the folder with the Python package."""

    agent: pathlib.Path
    library: pathlib.Path
    python: pathlib.Path

    def environment(self, **more: str) -> dict[str, str]:
        """Of a trainer whose every launch computes the same."""
        path = os.pathsep.join(filter(None, [str(self.python), os.environ.get("PYTHONPATH", "")]))
        return {**_REPRODUCIBLE, "PYTHONPATH": path, "CKPTD_LIB": str(self.library), **more}


def _candidates() -> list[Installation]:
    root = HERE.parents[1]
    named = os.environ.get("CKPTD_BUILD")
    builds = [pathlib.Path(named)] if named else [root / "build" / preset for preset in ("release", "dev")]
    package = root / "client" / "python"
    trees = [Installation(one / "bin" / "ckptd", one / "lib" / "libckpt.so", package) for one in builds]
    return [Installation(root / "bin" / "ckptd", root / "lib" / "libckpt.so", root / "python"), *trees]


def find() -> Installation:
    """Skip, saying where it was looked for, without an agent."""
    tried = _candidates()
    for one in tried:
        if one.agent.exists() and one.library.exists():
            return one
    raise Skip("no agent and libckpt at " + ", ".join(str(one.agent) for one in tried))


def require_torch() -> None:
    """Skip where torch is not installed. It is not loaded: the process that runs the parts has no driver."""
    if importlib.util.find_spec("torch") is None:
        raise Skip("no torch in this Python")
