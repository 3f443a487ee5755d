"""Counts test results of one leg: `count.py LOGDIR` prints "passed failed skipped", then each failure and skip.

LOGDIR holds what the runners wrote: ctest.xml, gtest/<binary>.xml for each gtest binary, pytest*.xml. A gtest binary is
one test to ctest; its own file is finer and knows the skips, so it replaces ctest's line. It never hides ctest's
verdict: a binary that crashed, hung or leaked after its last test is one failure more. What the failed tests of ctest
said last is written to LOGDIR/failures.
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


def failures(log):
    """The last lines of each test of ctest that failed: in the log others come after them."""
    for case in ET.parse(log / "ctest.xml").iter("testcase"):
        if verdict(case)[0] == "failed":
            yield f"---- {case.get('name')}"
            yield from case.findtext("system-out", "").strip().splitlines()[-LAST_LINES:]


def main():
    log = Path(sys.argv[1])
    results = []
    if (log / "ctest.xml").exists():
        results += ctest_cases(log)
        (log / "failures").write_text("".join(line + "\n" for line in failures(log)))
    for path in sorted(log.glob("pytest*.xml")):
        results += cases(path)
    print(*(sum(one[1] == wanted for one in results) for wanted in ("passed", "failed", "skipped")))
    for name, outcome, reason in results:
        if outcome != "passed":
            print(f"{outcome}: {name}" + (f": {reason}" if reason else ""))


main()
