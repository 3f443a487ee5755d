"""The interpreter of each peer: a virtual environment of its own, with its pinned packages on top of the shared one.

torch (7 GB) is not installed again: a .pth file names the site-packages of the environment that runs the driver. Kept
under $CKPTD_CACHE (~/.cache/ckptd), keyed by the requirements and by that environment.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig

_REQUIREMENTS = pathlib.Path(__file__).resolve().parents[1] / "requirements"
_SECONDS = 300.0  # that an installation may take


class NotInstalled(RuntimeError):
    """Why a peer's environment cannot be had: the installer's last line."""


def interpreter(requirements: str) -> pathlib.Path:
    """Of the environment for `requirements`/NAME.txt, which is built where it is missing; "": the shared one."""
    if not requirements:
        return pathlib.Path(sys.executable)
    folder = folder_of(requirements)
    if not (folder / ".complete").exists():
        _build(folder, _REQUIREMENTS / f"{requirements}.txt")
    return folder / "bin" / "python"


def folder_of(requirements: str) -> pathlib.Path:
    """Where the environment for `requirements`/NAME.txt is, or would be."""
    wanted = (_REQUIREMENTS / f"{requirements}.txt").read_bytes()
    key = hashlib.sha256(wanted + sys.prefix.encode()).hexdigest()[:12]
    cache = pathlib.Path(os.environ.get("CKPTD_CACHE") or pathlib.Path.home() / ".cache" / "ckptd")
    return cache / f"peer-{requirements}-{key}"


def _build(folder: pathlib.Path, wanted: pathlib.Path) -> None:
    """Beside its place, then renamed: two runs may build at once, and an interrupted one leaves nothing there."""
    print(f"Installing {wanted.stem} into {folder}", file=sys.stderr, flush=True)
    new = folder.with_name(f"{folder.name}.{os.getpid()}")
    shutil.rmtree(new, ignore_errors=True)
    try:
        _run(sys.executable, "-m", "venv", "--without-pip", str(new))
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        (new / "lib" / version / "site-packages" / "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
        pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(new / "bin" / "python"))
        _run(*pip, "install", "--quiet", "--no-deps", "--no-cache-dir", "-r", str(wanted))
        (new / ".complete").touch()
        if not (folder / ".complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired as expired:
        raise NotInstalled(f"not installed within {_SECONDS:.0f} s") from expired
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR:")] or lines or ["no word why"]
        raise NotInstalled(errors[-1])
