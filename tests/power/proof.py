"""Power failures with a protection taken away: a loss must be found, else the cuts prove nothing.

The power fails just after a step was acknowledged: soon afterwards what is owed is on the medium in any case, with the
next fsync of any file.
"""

from __future__ import annotations

import pathlib

from cuts import Chain, Plan
from guest import Machine

_MOST = 80  # cuts until a loss must have been found
_CHAIN = 8
_WHAT = {
    ("files", "volatile"): "without fsync of files",
    ("folders", "volatile"): "without fsync of folders",
    ("none", "lying"): "with a disk that obeys no flush",
}
# The first three have each protection and each file system once.
ALL = [
    (("files", "volatile"), "ext4"),
    (("folders", "volatile"), "ext4-writeback"),
    (("none", "lying"), "xfs"),
    (("files", "volatile"), "ext4-writeback"),
    (("folders", "volatile"), "xfs"),
    (("none", "lying"), "ext4"),
    (("files", "volatile"), "xfs"),
    (("folders", "volatile"), "ext4"),
    (("none", "lying"), "ext4-writeback"),
]


def prove(machine: Machine, work: pathlib.Path, seed: str, count: int) -> bool:
    """The first `count` of ALL, a line for each. Whether all were noticed."""
    return all([_prove(machine, work, seed, *one) for one in ALL[:count]])


def _prove(machine: Machine, work: pathlib.Path, seed: str, taken: tuple[str, str], file_system: str) -> bool:
    without, disk = taken
    cuts, lost = 0, ""
    while cuts < _MOST and not lost:
        plan = Plan(f"{seed}/without/{cuts}", file_system, disk, without, ends=("word",))
        result = Chain(machine, work, plan).run(_CHAIN)
        cuts, lost = cuts + result.cuts, result.lost
    verdict = f"noticed after {cuts} cuts" if lost else f"NOT NOTICED in {cuts} cuts"
    print(f"{_WHAT[taken]}, {file_system}: {verdict}", flush=True)
    return lost != ""
