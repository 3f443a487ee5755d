"""Runs of gpu_loop.py: forked from a warm process, for torch takes four seconds to import and there are many of them."""

import atexit
import functools
import os
import pathlib
import subprocess
import sys
import tempfile

from conftest import BUILD, ROOT, require_build
from warm import Warm

LOOP = ROOT / "tests" / "python" / "gpu_loop.py"
OWN = {"CKPTD_BUILD": str(BUILD), "PYTHONPATH": f"{ROOT}/client/python:{ROOT}/tests/python", "OMP_NUM_THREADS": "1"}
ENDS_ITSELF = {"exception", "handled"}  # what an interpreter does at its end is tested: not a fork's


@functools.cache
def warm():
    folder = tempfile.TemporaryDirectory(prefix="ckptd-gpu-")
    process = Warm("gpu_loop", pathlib.Path(folder.name), {**os.environ, **OWN})
    atexit.register(folder.cleanup)
    atexit.register(process.end)
    return process


def run(out, agent=None, *arguments, environment=None):
    """Exit status of one launch."""
    require_build()
    out.mkdir(exist_ok=True)
    everything = {**(agent.environment() if agent else {}), **OWN, **(environment or {})}
    arguments = ["--out", str(out), *(["--save"] if agent else []), *arguments]
    if ENDS_ITSELF & set(arguments):
        return subprocess.run([sys.executable, str(LOOP), *arguments], env=everything, timeout=120).returncode
    status, said = warm().run(everything, arguments=arguments)
    if status:
        print(said)
    return status
