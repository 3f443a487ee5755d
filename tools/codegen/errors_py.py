#!/usr/bin/env python3
"""Writes client/python/ckptd/_errors.py from proto/local/errors.def; with --check only tells whether it is current."""

import ast
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = ROOT / "proto" / "local" / "errors.def"
TARGET = ROOT / "client" / "python" / "ckptd" / "_errors.py"
ROW = re.compile(r'^CKPTD_ERROR\((\w+), (\d+), \w+, (\d+), ("\w+"), (".*")\)$', re.MULTILINE)

HEAD = '''\
"""Errors of ckptd. Generated from proto/local/errors.def by tools/codegen/errors_py.py: change that table instead."""

# ruff: noqa: E501
# fmt: off
from __future__ import annotations

from typing import NamedTuple


class CkptdError(RuntimeError):
    """Base of every error of ckptd. `code`: name of the row in the table of errors, for programs."""

    code = "INTERNAL"


class AgentUnreachable(CkptdError):
    """No agent answers, or it speaks another version."""


class RestoreError(CkptdError):
    """`restore()` could not bring the state back; nothing trains from a guess."""


class LayoutMismatch(RestoreError):
    """Names, shapes or dtypes of the checkpoint and of the trainer differ."""


class SaveError(CkptdError):
    """A save was dropped; training may go on."""


class NotFound(RestoreError):
    """The step, job or checkpoint asked for does not exist."""


class Info(NamedTuple):
    """One row of the table."""

    name: str
    exit_code: int
    exception: type[Exception]
    next_step: str


INFO = {
'''

TAIL = '''\
}
_BY_NAME = {info.name: info for info in INFO.values()}
_SPECIFIC = (ValueError, TypeError)


def code_name(status: int) -> str:
    """Name of a status of libckpt (a negative number): "REGION_FULL"."""
    return INFO[-status].name if -status in INFO else "INTERNAL"


def make(name: str, sentence: str, exception: type[Exception] | None = None) -> Exception:
    """The exception of row `name`, or `exception` instead of the row's: the sentence, then what to do next."""
    info = _BY_NAME.get(name, _BY_NAME["INTERNAL"])
    error = (exception or info.exception)(f"{sentence.rstrip('.')}. Next step: {info.next_step}.")
    if not isinstance(error, _SPECIFIC):
        error.code = info.name  # type: ignore[attr-defined]
    return error
'''


def generate(table: str) -> str:
    """Text of _errors.py for the text of errors.def."""
    rows = ROW.findall(table)
    if len(rows) != table.count("\nCKPTD_ERROR("):
        raise SystemExit(f"{TABLE}: a row was not understood")
    lines = [
        f'    {number}: Info("{name}", {exit_code}, {ast.literal_eval(exception)},\n        {step}),'
        for name, number, exit_code, exception, step in rows
    ]
    return HEAD + "\n".join(lines) + "\n" + TAIL


def main() -> int:
    text = generate(TABLE.read_text())
    if "--check" in sys.argv[1:]:
        return 0 if TARGET.exists() and TARGET.read_text() == text else 1
    TARGET.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
