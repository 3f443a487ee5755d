"""Writes what a nightly run said into a Markdown file, newest first.

usage: nightly.py FILE LOGDIR COMMIT COMMAND SECONDS < ROWS

ROWS are the lines "leg seconds passed failed skipped" of tools/test. What was tried (how many kills, how many steps,
with which seeds) is taken from what the tests printed, not from what they were asked to do.
"""

import os
import re
import sys
import time
import xml.etree.ElementTree as ET
from pathlib import Path

HEAD = """# Nightly runs

What `tools/test --nightly` said, newest first. It writes this file itself; a run that was cut short writes nothing.
"""
# "seed 7, Agent: 1000 kills, ..." of random_kill_test; "seed 7" and "100000000 steps in ..." of protocol_run;
# "header: 19000000 runs, ..." of tests/fuzz/run; "volatile disk, xfs: 1000 cuts, ..." of tests/power/run
COUNTED = re.compile(
    r"^(?:seed \d+.*|\d+ steps in .*|VIOLATION .*|replay: .*|\w+: \d+ runs, .*|\w+ disk, .*|with.*: noticed .*|"
    r"fault \w+ for .*|rebuild \w+, .*)$",
    re.MULTILINE,
)


def machine():
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / (1 << 20)
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', Path("/etc/os-release").read_text(), re.MULTILINE)[1]
    return f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {system}"


def counted(log):
    """(test, line) of all that the tests of this leg counted."""
    try:
        cases = list(ET.parse(log / "ctest.xml").iter("testcase"))
    except (OSError, ET.ParseError):  # not of ctest, or cut short: its row says what came of it
        return
    for case in cases:
        yield from ((case.get("name"), line) for line in COUNTED.findall(case.findtext("system-out") or ""))


def bullets(title, lines):
    found = [f"* {line}" for line in lines]
    return [f"\n{title}:\n", *found] if found else []


def of_counts(log, outcome):
    """"test: reason" of each test of a leg with this outcome, as count.py listed them."""
    lines = (log / "counts").read_text().splitlines()[1:] if (log / "counts").exists() else []
    return [line.removeprefix(f"{outcome}: ") for line in lines if line.startswith(f"{outcome}: ")]


def failures(logs, rows):
    for leg, _, _, failed, _ in rows:
        tests = of_counts(logs / leg, "failed")
        yield from (f"{leg}: {test}" for test in tests)
        if int(failed) > len(tests):
            yield f"{leg}: the leg itself (its build, a tool, or its time)"


def record(logs, facts, rows):
    verdict = "FAILED" if any(int(row[3]) for row in rows) else "passed"
    lines = [f"\n## {time.strftime('%Y-%m-%d %H:%M', time.gmtime())} UTC: {verdict}\n", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts.items()]
    lines += ["\n| leg | seconds | passed | failed | skipped |", "| --- | ---: | ---: | ---: | ---: |"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    lines += bullets("Failed", failures(logs, rows))
    lines += bullets("Skipped", [f"{row[0]}: {test}" for row in rows for test in of_counts(logs / row[0], "skipped")])
    lines += bullets("Counted", [f"{row[0]}: {test}: {line}" for row in rows for test, line in counted(logs / row[0])])
    return "\n".join(lines) + "\n"


def main():
    file, logs, commit, command, seconds = sys.argv[1:]
    facts = {"commit": commit, "command": f"`{command}`", "machine": machine(), "seconds": seconds}
    path = Path(file)
    older = path.read_text().removeprefix(HEAD) if path.exists() else ""
    path.write_text(HEAD + record(Path(logs), facts, [line.split() for line in sys.stdin]) + older)


main()
