"""The wheel: built by the real pip, installed elsewhere, used with nothing of this repository on the path."""

import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import ROOT

# A wheel is always built anew; of an unchanged source the compiler's cache has the answer.
CCACHE = {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX") if shutil.which("ccache")}
TRAIN = """
import sys, time, torch, ckptd
assert ckptd.__file__.startswith(sys.argv[1]), ckptd.__file__
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.AdamW(model.parameters())
ck = ckptd.Checkpointer({"model": model, "optim": optimizer}, job="wheel")
step = start = ck.restore()
saved = False
while not saved and step < start + 1000:
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    step += 1
    save = ck.save(step)
    try:
        saved = save.durable(10)
    except ckptd.SaveError:  # the first ones are dropped while memory is prepared
        time.sleep(0.02)
ck.close()
print(start, step)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    out = tmp_path_factory.mktemp("wheel")
    done = subprocess.run([ROOT / "tools" / "wheel", out], capture_output=True, text=True,
                          env={**os.environ, **CCACHE, "PYTHON": sys.executable})  # fmt: skip
    assert done.returncode == 0, done.stderr
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_fits_the_oldest_systems_that_are_promised(wheel):
    """RHEL 9 and Ubuntu 22.04 have glibc 2.34 and newer."""
    assert wheel.name == "ckptd-0.1.0-py3-none-manylinux_2_34_x86_64.whl"
    names = zipfile.ZipFile(wheel).namelist()
    assert {"ckptd/libckpt.so", "ckptd/py.typed", "ckptd/__init__.py"} <= set(names)
    sources = {f"ckptd/{path.relative_to(ROOT / 'client/python/ckptd')}"
               for path in (ROOT / "client/python/ckptd").rglob("*.py")}  # fmt: skip
    assert sources <= set(names)


def test_what_was_installed_saves_and_restores(wheel, agent, tmp_path):
    site = tmp_path / "site"
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", site, wheel], check=True)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("CKPTD_", "PYTHON"))}
    environment.update(PYTHONPATH=str(site), CKPTD_SOCKET=str(agent.socket))
    expected = 0
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", TRAIN, site], cwd=tmp_path, env=environment, text=True,
                              capture_output=True)  # fmt: skip
        assert done.returncode == 0, done.stderr
        start, saved = map(int, done.stdout.split())
        assert start == expected, done.stderr
        expected = saved
