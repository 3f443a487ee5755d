"""tidy_units.py COMPILE_COMMANDS: what compiles the sources on stdin, each unit once, in the order of the sources.

A unit is a source by itself, or a generated one that includes several of a room: clang-tidy spends its time on the
headers, once for each unit. All paths are relative to the current folder.
"""

import json
import os
import re
import sys


def sources_of(unit: str) -> list[str]:
    """The sources that are compiled in a unit."""
    if "/Unity/unity_" not in unit:
        return [unit]
    with open(unit, encoding="utf-8") as text:
        return [os.path.relpath(path) for path in re.findall(r'^#include "(.*)"$', text.read(), re.MULTILINE)]


def main() -> None:
    with open(sys.argv[1], encoding="utf-8") as commands:
        units = {os.path.relpath(command["file"]): None for command in json.load(commands)}
    unit_of = {source: unit for unit in units for source in sources_of(unit)}
    wanted = dict.fromkeys(unit_of[source] for source in sys.stdin.read().split() if source in unit_of)
    print("\n".join(wanted), end="\n" if wanted else "")


if __name__ == "__main__":
    main()
