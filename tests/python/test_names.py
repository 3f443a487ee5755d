"""Names do not depend on what wraps a model; the generated errors are current."""

import pathlib
import subprocess
import sys

import pytest
import torch
from ckptd import _errors, names

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path, expected", [
    ("model.module.layer.weight", "model.layer.weight"), ("module._orig_mod.a", "a"),
    ("a._checkpoint_wrapped_module.b", "a.b"),
    ("a.modules.b", "a.modules.b"), ("my_module.b", "my_module.b"), ("_fsdp_wrapped_module.x", "x"), ("plain", "plain"),
])  # fmt: skip
def test_canonical(path, expected):
    assert names.canonical(path) == expected


def test_wrapped_modules_have_the_bare_names():
    bare = torch.nn.Linear(2, 2)
    wrapped = torch.compile(torch.nn.DataParallel(bare))
    assert {names.canonical(name) for name, _ in wrapped.named_parameters()} == {
        name for name, _ in bare.named_parameters()
    }


def test_ambiguous_and_reserved_names_are_refused():
    with pytest.raises(names.AmbiguousName, match="'a.b'"):
        names.check_unique(["a.b", "c", "a.b"])
    for name in ("__metadata__", "__ckptd_extra__.rank-00000", ""):
        with pytest.raises(ValueError, match="reserved"):
            names.check_unique([name])


def test_errors_are_generated_from_the_table():
    script = ROOT / "tools" / "codegen" / "errors_py.py"
    assert subprocess.run([sys.executable, script, "--check"]).returncode == 0, f"run {script}"
    assert _errors.code_name(-11) == "REGION_FULL"
    error = _errors.make("LAYOUT_MISMATCH", "a differs")
    assert isinstance(error, _errors.LayoutMismatch) and error.code == "LAYOUT_MISMATCH" and "a differs" in str(error)
    assert isinstance(_errors.make("UNSUPPORTED_DTYPE", "x"), TypeError)
