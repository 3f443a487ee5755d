"""Lines that tests ran, by room, from clang's profile: coverage.py ROOT PROFILE.

Looks at every program and library of build/coverage. A room is a folder of sources; its tests, doubles for tests and
generated code do not count, nor does what this CPU cannot run, which is told. Exit 1 when a room is below its mark.
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

MARK, PROMISES = 90.0, 96.0  # percent
STRICT = ("daemon/format", "daemon/region", "daemon/persist", "daemon/recover")  # what keeps a snapshot whole
WORST = 3  # files of a room that are named
OF_CPUS = {"client/core/copy/crc32c_wide.cc": {"avx512f", "vpclmulqdq"}}  # flags of /proc/cpuinfo


def missing_here(name):
    """The flags for want of which this CPU cannot run a file."""
    flags = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return OF_CPUS.get(name, set()) - set(flags[1].split() if flags else ())


def objects(build):
    """Everything linked that has coverage: programs, tests, libckpt."""
    found = [path for folder in ("bin", "lib") for path in sorted((build / folder).rglob("*"))]
    return [str(path) for path in found if path.is_file() and path.read_bytes()[:4] == b"\x7fELF"]


def files(root, profile):
    build = root / "build" / "coverage"
    linked = objects(build)
    more = [word for path in linked[1:] for word in ("-object", path)]
    told = subprocess.run(
        ["llvm-cov", "export", "-summary-only", "-skip-expansions", "-instr-profile", profile, linked[0], *more],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for file in json.loads(told)["data"][0]["files"]:
        yield (build / file["filename"]).resolve(), file["summary"]["lines"]  # the compiler cache makes names relative


def room_of(name, root):
    """The room of a file that counts, else None."""
    if not name.is_relative_to(root):
        return None
    inside = name.relative_to(root)
    if inside.parts[0] not in ("client", "daemon", "tools") or inside.stem.endswith(("_test", "_test_util")):
        return None
    if any(part in ("testing", "bench", "gen") for part in inside.parts) or inside.stem.startswith("fake_"):
        return None
    return str(inside.parent)


def main(root, profile):
    rooms = defaultdict(list)
    for name, lines in files(root, profile):
        room = room_of(name, root)
        flags = missing_here(str(name.relative_to(root))) if room else set()
        if flags:
            print(f"{name.relative_to(root)} is not counted: this CPU has no {' and no '.join(sorted(flags))}")
        elif room:
            rooms[room].append((name.name, lines["covered"], lines["count"]))
    below = 0
    for room, found in sorted(rooms.items()):
        covered, count = sum(file[1] for file in found), sum(file[2] for file in found)
        mark = PROMISES if room in STRICT else MARK
        percent = 100 * covered / count
        missing = sorted(((count - covered, name) for name, covered, count in found if covered < count), reverse=True)
        told = ", ".join(f"{name} {lines}" for lines, name in missing[:WORST])
        verdict = "" if percent >= mark else f"  BELOW {mark:.0f} %"
        below += percent < mark
        print(f"{room:24} {percent:6.1f} % of {count:5} lines{verdict}{'; not run: ' + told if told else ''}")
    print(f"{len(rooms)} rooms, {below} below their mark")
    return 1 if below or not rooms else 0


sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2]))
