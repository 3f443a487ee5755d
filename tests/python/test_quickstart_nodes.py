"""tools/quickstart --nodes, with two nodes and a spare: one is lost, the run is not, and nothing is left behind."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest
from conftest import BUILD, ROOT, require_build

FOLDER = ROOT / "tools" / "quickstart.d"


def namespaces_work():
    """Whether this user, here, may make network namespaces and wire them."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"ckptd-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True).returncode:
        return False
    wired = subprocess.run(["ip", "-n", name, "link", "add", "x", "type", "bridge"], capture_output=True)
    subprocess.run(["ip", "netns", "del", name], check=True)
    return wired.returncode == 0


def play(tmp_path, *arguments):
    require_build()
    command = [sys.executable, FOLDER / "node_scenes.py", tmp_path / "work", "--nodes", "2", *arguments]
    return subprocess.Popen(command, env={**os.environ, "CKPTD_BUILD": str(BUILD)}, text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT)  # fmt: skip


def left_by(pid):
    """Folders in memory, namespaces and processes of such a run."""
    regions = list(pathlib.Path("/dev/shm").glob(f"ckptd-quickstart-{pid}-*"))
    names = list(pathlib.Path("/run/netns").glob(f"ckptd-{pid}-*"))
    return [*regions, *names]


def running(work):
    """Processes that have this folder in their command line."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if str(work).encode() in text and path.parent.name != str(os.getpid()):
            found.append(text)
    return found


def test_a_lost_node_comes_back_from_memory(tmp_path):
    alone = [] if namespaces_work() else ["--no-namespaces"]
    process = play(tmp_path, "--only", "node-lost", "--steps", "12", "--every", "2", *alone)
    told, _ = process.communicate(timeout=250)
    assert process.returncode == 0, told
    row = next(line for line in told.splitlines() if line.startswith("node-lost: ") and line.endswith("bit-exact"))
    assert "replica: rank 1; region: rank 0" in row, told
    assert ("NO TLS" if alone else "mutual TLS") in told
    assert left_by(process.pid) == [] and running(tmp_path) == []


def test_without_root_it_says_what_to_do(tmp_path):
    """Before anything is built up. The distribution's interpreter: others lie where another user cannot read them."""
    require_build()
    nobody = {} if os.geteuid() else {"user": 65534, "group": 65534, "extra_groups": []}
    command = ["/usr/bin/python3", FOLDER / "node_scenes.py", tmp_path / "work"]
    if subprocess.run(["/usr/bin/test", "-r", command[1]], **nobody).returncode:
        pytest.skip("this checkout is readable for its owner only")
    done = subprocess.run(command, **nobody, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "need root. Next: " in done.stderr and "--no-namespaces" in done.stderr
