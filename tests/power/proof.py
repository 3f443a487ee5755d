"""Power failures with a protection taken away: a loss must be found, else the cuts prove nothing.

The power fails just after a step was acknowledged: soon afterwards what is owed is on the medium in any case, with the
next fsync of any file.
"""

from __future__ import annotations

import pathlib

from cuts import Chain, Plan
from guest import Machine

_CHAIN = 8  # cuts of one disk
_CHAINS = 10  # until a loss must have been found
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
    cuts, noticed = 0, False
    for number in range(_CHAINS):
        plan = Plan(f"{seed}/without/{number}", file_system, disk, without, ends=("word",))
        result = Chain(machine, work, plan).run(_CHAIN)
        cuts += result.cuts
        noticed = result.lost != "" and not result.stuck
        if noticed:
            break
    verdict = f"noticed after {cuts} cuts" if noticed else f"NOT NOTICED in {cuts} cuts; last: {result.lost}"
    print(f"{_WHAT[taken]}, {file_system}: {verdict}", flush=True)
    return noticed
