"""bench.py BUILD: ckptd-bench runs every case with tiny sizes, and each prints a line that means something."""

import json
import pathlib
import subprocess
import sys

CASES = {
    "copy.crc": "GB/s", "save.blocked": "ms", "save.captured": "GB/s", "flush.durable": "GB/s", "restore.region": "GB/s",
    "restore.storage": "GB/s", "agent.start": "ms", "adopt": "ms",
}  # fmt: skip


def run(bench, *arguments):
    """(exit status, stdout, stderr)"""
    done = subprocess.run([bench, *arguments], capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout, done.stderr


def check_line(line):
    """One case's line."""
    found = json.loads(line)
    assert set(found) == {"case", "value", "unit", "limit", "ratio", "n", "spread", "what"}, found
    least, most = found["spread"]
    assert found["unit"] == CASES[found["case"]] and found["n"] == 3, found
    assert 0 < least <= found["value"] <= most and found["limit"] > 0, found
    assert abs(found["ratio"] - found["value"] / found["limit"]) < 0.02 * found["ratio"], found
    return found["case"]


def leftovers():
    """Folders of benchmarks that run, or were left behind."""
    return {path for parent in ("/tmp", "/dev/shm", "/var/tmp") for path in pathlib.Path(parent).glob("ckptd-bench*")}


def main():
    bench = pathlib.Path(sys.argv[1]) / "bin" / "ckptd-bench"
    if not bench.exists():
        print(f"skipped: no {bench} in this build")
        return 77
    before = leftovers()
    for ranks in ("1", "2"):
        status, out, err = run(bench, "all", "--bytes", "1MiB", "--tensors", "10", "--ranks", ranks, "--n", "3")
        assert status == 0, err
        assert [check_line(line) for line in out.splitlines()] == list(CASES), out
    assert leftovers() <= before, leftovers() - before
    skipped = json.loads(run(bench, "adopt", "--bytes", "100TiB")[1])
    assert skipped["case"] == "adopt" and "memory" in skipped["skipped"], skipped
    assert all(case in run(bench, "--help")[1] for case in CASES)
    for bad in (["no.such"], [], ["adopt", "--n", "0"], ["adopt", "--bytes"], ["--nonsense", "1"]):
        status, out, err = run(bench, *bad)
        assert status == 2 and not out and "ckptd-bench" in err, (bad, status, out, err)
    print(f"{len(CASES)} cases, 1 and 2 ranks")
    return 0


if __name__ == "__main__":
    sys.exit(main())
