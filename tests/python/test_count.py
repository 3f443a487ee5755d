"""tools/lib/count.py never turns a failure into a pass: what decides whether this repository's tests passed."""

import subprocess
import sys
from pathlib import Path

COUNT = Path(__file__).resolve().parents[2] / "tools" / "lib" / "count.py"

PASSED = '<testcase name="x" status="run" result="completed" classname="A"/>'
SKIPPED = (
    '<testcase name="y" status="run" result="skipped" classname="A"><skipped message="a.cc:3&#xA;no io_uring"/></testcase>'
)
FAILED = '<testcase name="z" status="run" result="completed" classname="A"><failure message="no"/></testcase>'


def count(log, ctest=None, pytest=None, **gtest):
    (log / "gtest").mkdir()
    for name, cases in gtest.items():
        (log / "gtest" / f"{name}.xml").write_text(f"<testsuites><testsuite>{cases}</testsuite></testsuites>")
    for name, cases in (("ctest", ctest), ("pytest", pytest)):
        if cases is not None:
            (log / f"{name}.xml").write_text(f"<testsuite>{cases}</testsuite>")
    done = subprocess.run([sys.executable, COUNT, log], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    return done.returncode, lines[0] if lines else "", lines[1:]


def ctest(name, status="run", inside=""):
    return f'<testcase name="{name}" status="{status}">{inside}</testcase>'


def test_a_gtest_binary_counts_by_its_own_tests(tmp_path):
    assert count(tmp_path, ctest("a_test"), a_test=PASSED + SKIPPED) == (
        0, "1 0 1", ["skipped: A.y: a.cc:3 no io_uring"])  # fmt: skip


def test_failures_inside_are_not_counted_twice(tmp_path):
    result = count(tmp_path, ctest("a_test", "fail", "<failure/>"), a_test=PASSED + FAILED)
    assert result == (0, "1 1 0", ["failed: A.z"])


def test_a_crash_leaves_no_file_and_is_a_failure(tmp_path):
    assert count(tmp_path, ctest("a_test", "fail", "<failure/>")) == (0, "0 1 0", ["failed: a_test"])


def test_a_leak_after_the_last_test_is_a_failure(tmp_path):
    assert count(tmp_path, ctest("a_test", "fail", "<failure/>"), a_test=PASSED) == (0, "1 1 0", ["failed: a_test"])


def test_a_script_that_skips_says_why(tmp_path):
    inside = '<skipped message="SKIP_RETURN_CODE=77"/><system-out>looking\nno agent in this build</system-out>'
    assert count(tmp_path, ctest("sh", "notrun", inside)) == (0, "0 0 1", ["skipped: sh: no agent in this build"])


def test_a_test_that_was_not_built_is_no_pass(tmp_path):
    inside = '<skipped message="Unable to find executable"/>'
    assert count(tmp_path, ctest("a_test", "notrun", inside)) == (0, "0 1 0", ["failed: a_test: Unable to find executable"])


def test_what_failed_tests_said_last_can_be_shown(tmp_path):
    said = "".join(f"line {i}\n" for i in range(100))
    inside = f"<failure/><system-out>{said}</system-out>"
    count(tmp_path, ctest("good", inside="<system-out>fine</system-out>") + ctest("a_test", "fail", inside))
    assert (tmp_path / "failures").read_text().splitlines() == ["---- a_test", "-- system-out", *said.splitlines()[-60:]]


def test_pytest(tmp_path):
    assert count(tmp_path, pytest=PASSED + SKIPPED + FAILED)[:2] == (0, "1 1 1")


def test_half_a_file_is_an_error(tmp_path):
    (tmp_path / "ctest.xml").write_text("<testsuite><testcase")
    assert count(tmp_path)[0] != 0
