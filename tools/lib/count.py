"""Counts test results of one leg: `count.py LOGDIR` prints "passed failed skipped", then each failure and skip.

LOGDIR holds what the runners wrote: ctest.xml, gtest/<binary>.xml for each gtest binary, pytest*.xml. A gtest binary is
one test to ctest; its own file is finer and knows the skips, so it replaces ctest's line. It never hides ctest's
verdict: a binary that crashed, hung or leaked after its last test is one failure more. What the failed tests said last
is written to LOGDIR/failures.
"""

import sys
import xml.etree.ElementTree as ET
from pathlib import Path

LAST_LINES = 60


def verdict(case):
    """(outcome, reason) of one <testcase> in any of the three dialects."""
    skipped = case.find("skipped")
    if case.find("failure") is not None or case.find("error") is not None or case.get("status") == "fail":
        return "failed", ""
    if skipped is not None or case.get("status") in ("notrun", "disabled") or case.get("result") == "skipped":
        message = "" if skipped is None else (skipped.get("message") or skipped.text or "")
        if message.startswith("Unable to find executable"):  # ctest's word for a test that was not built
            return "failed", message
        if message.startswith("SKIP_RETURN_CODE"):  # the script's own reason is its last line
            message = (case.findtext("system-out", "").strip().splitlines() or [message])[-1]
        return "skipped", " ".join(message.removeprefix("skipped: ").split()) or "no reason given"
    return "passed", ""


def cases(path):
    for case in ET.parse(path).iter("testcase"):
        name = ".".join(filter(None, (case.get("classname"), case.get("name"))))
        yield (name, *verdict(case))


def ctest_cases(log):
    for case in ET.parse(log / "ctest.xml").iter("testcase"):
        name = case.get("name")
        outcome, reason = verdict(case)
        try:
            inner = list(cases(log / "gtest" / f"{name}.xml"))
        except (OSError, ET.ParseError):
            inner = []
        yield from inner
        if not inner or (outcome == "failed" and not any(one[1] == "failed" for one in inner)):
            yield name, outcome, reason


def said(case):
    """The last lines of each thing that a failed test left: why it failed, and what it and its processes printed."""
    for part in ("failure", "error", "system-out", "system-err"):
        lines = case.findtext(part, "").strip().splitlines()
        if lines:
            yield f"-- {part}"
            yield from lines[-LAST_LINES:]


def failures(paths):
    """Of each test that failed, what it said last: in the log others come after it."""
    for path in paths:
        for case in ET.parse(path).iter("testcase"):
            if verdict(case)[0] == "failed":
                yield f"---- {case.get('name')}"
                yield from said(case)


def main():
    log = Path(sys.argv[1])
    results = []
    runs = sorted(log.glob("ctest.xml")) + sorted(log.glob("pytest*.xml"))
    (log / "failures").write_text("".join(line + "\n" for line in failures(runs)))
    for path in runs:
        results += ctest_cases(log) if path.name == "ctest.xml" else cases(path)
    print(*(sum(one[1] == wanted for one in results) for wanted in ("passed", "failed", "skipped")))
    for name, outcome, reason in results:
        if outcome != "passed":
            print(f"{outcome}: {name}" + (f": {reason}" if reason else ""))


main()
