"""bench.py BUILD: ckptd-bench runs every case with tiny sizes, and each prints a line that means something. The cases
of a GPU run on the host device, and say so; without a driver they are skipped, and an error where they are asked for.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

COPIES = [f"copies.{way}/{limit}" for way in ("plain", "tls", "bulk-tls", "tcp", "ucx")
          for limit in ("memcpy", "iperf3", "ucx-tcp", "ucx-shm")]  # fmt: skip
PROTECTED = ("save.protected", "save.protected.tcp")
CAPTURED = ("save.captured.copies", "save.captured.copies.tcp")
RECOVERED = ("restore.replica", "restore.replica.tcp", "restore.parity", "restore.parity.tcp")
COORDINATOR = {f"coordinator.{nodes}.{what}": "MiB" if what == "memory" else "ms"
               for nodes in (64, 1250, 8)
               for what in ("restore", "losses", "parity-losses", "commit", "cpu", "memory")}  # fmt: skip
CASES = {
    "copy.crc": "GB/s", "save.blocked": "ms", "save.captured": "GB/s",
    "save.captured.stays": "GB/s", "save.captured.alone": "GB/s", "flush.durable": "GB/s",
    "restore.region": "GB/s", "restore.map": "ms", "restore.storage": "GB/s",
    "agent.start": "ms", "adopt": "ms", "commit": "ms", "register": "ms", "register.ready": "ms",
    "control.status": "1/s", **dict.fromkeys((*PROTECTED, *CAPTURED, *RECOVERED, *COPIES), "GB/s"),
    "agent.rest": "%", "agent.memory": "MiB",
    "erasure.encode": "GB/s", "erasure.encode.xor": "GB/s", "erasure.encode.folded": "GB/s",
    "erasure.rebuild": "GB/s", "erasure.rebuild.xor": "GB/s",
    "protocol.restore": "ms", "protocol.commit": "ms", "protocol.memory": "MiB", **COORDINATOR,
}  # fmt: skip
# Lines of a case that is named otherwise.
SECOND = {"register.ready", "erasure.encode.xor", "erasure.encode.folded", "erasure.rebuild.xor"}
SECOND |= {PROTECTED[1], CAPTURED[1], *RECOVERED[1::2]}
SECOND |= {"protocol.restore", "protocol.commit", "protocol.memory", *COPIES, *COORDINATOR}
MAY_BE_SKIPPED = {*PROTECTED, *RECOVERED, *COPIES}  # what is compared with is not installed everywhere
MAY_BE_NOTHING = {"agent.rest"}
CONTRACTS = {"restore.map": 10, "agent.rest": 0.1, "agent.memory": 30}
CONTRACTS |= {"protocol.restore": 1000, "protocol.commit": 1000, "protocol.memory": 1024}
CONTRACTS |= {name: 1024 if unit == "MiB" else 1000 for name, unit in COORDINATOR.items()}
GPU_CASES = ("gpu-d2h-push", "gpu-d2h-pull", "gpu-blocked", "gpu-restore")
RATES = ("gpu-d2h-push", "gpu-d2h-pull", "gpu-restore")
WAITS = [f"gpu-blocked.{path}.{where}" for path in ("push", "pull") for where in ("host", "stream")]
GPU_LINES = {**dict.fromkeys(RATES, "GB/s"), **dict.fromkeys(WAITS, "ms")}
HOST_DEVICE = "host device: no figure of a GPU"
MAY_STRAY = 4  # saves of an attempt that find a slot with a new file, and are pushed into it
RATE = 1000  # of the host device, bytes a microsecond: 1 GB/s


def run(bench, *arguments, driver=None):
    """(exit status, stdout, stderr). driver: the folder of libcuda.so.1."""
    settings = {**os.environ, **({"LD_LIBRARY_PATH": str(driver), "FAKECUDA_RATE": str(RATE)} if driver else {})}
    done = subprocess.run([bench, *arguments], capture_output=True, text=True, timeout=300, env=settings)
    return done.returncode, done.stdout, done.stderr


def check_line(line, units, more=frozenset(), times=3):
    """One case's line."""
    found = json.loads(line)
    if found["case"] in MAY_BE_SKIPPED and "skipped" in found:
        assert set(found) == {"case", "skipped"}, found
        assert "not installed" in found["skipped"] or "UCX cannot be used" in found["skipped"], found
        return found
    keys = {"case", "value", "unit", "limit", "ratio", "n", "spread", "limit_spread", "what"}
    assert set(found) == keys | more, found
    least, most = found["spread"]
    assert found["unit"] == units[found["case"]] and found["n"] == times, found
    assert 0 <= least <= found["value"] <= most and found["limit"] > 0, found
    assert least > 0 or found["case"] in MAY_BE_NOTHING, found
    assert abs(found["ratio"] - found["value"] / found["limit"]) <= 0.02 * found["ratio"], found
    assert found["limit"] == CONTRACTS.get(found["case"], found["limit"]), found
    return found


def leftovers():
    """Folders of benchmarks that run, or were left behind."""
    return {path for parent in ("/tmp", "/dev/shm", "/var/tmp") for path in pathlib.Path(parent).glob("ckptd-bench*")}


def check_host_device(bench, driver):
    """What is measured is what the host device was told to do, and no line passes for a GPU's."""
    status, out, err = run(bench, *GPU_CASES, "--bytes", "24MiB", "--tensors", "50", "--n", "3", driver=driver)
    assert status == 0, err
    found = {one["case"]: one for one in (check_line(line, GPU_LINES, {"device"}) for line in out.splitlines())}
    assert set(found) == set(GPU_LINES), out
    assert all(one["device"] == HOST_DEVICE for one in found.values()), out
    for name in RATES:  # nothing is faster than the device, nor is the clock stopped early
        assert max(found[name]["spread"][1], found[name]["limit"]) < RATE * 1e6 * 1.05 / 1e9, found[name]
        assert "24.0 MiB of state" in found[name]["what"] and "12 x 2.0 MiB" in found[name]["what"], found[name]
    saves = {"gpu-d2h-push": 4, "gpu-d2h-pull": 4, **dict.fromkeys(WAITS, 7)}  # with those that do not count
    for name, least in saves.items():
        pulled, made = map(int, re.search(r", (\d+) of (\d+) saves pulled", found[name]["what"]).groups())
        assert pulled == (least if "pull" in name else 0), found[name]
        assert least <= made <= least + (MAY_STRAY if "pull" in name else 0), found[name]
    for name in WAITS:  # a capture takes 25 ms: whoever waits for it in the host or on the stream does so every time
        assert found[name]["limit"] == 1 and found[name]["spread"][0] < 20, found[name]
    skipped = json.loads(run(bench, "gpu-d2h-push", "--bytes", "100TiB", driver=driver)[1])
    assert skipped["device"] == HOST_DEVICE and "GPU memory" in skipped["skipped"], skipped


def check_no_driver(bench, driver):
    for name in GPU_CASES:
        status, out, err = run(bench, name, driver=driver)
        assert status == 1 and not out, (status, out, err)
        assert err.startswith(f"ckptd-bench: {name}: no CUDA driver here: "), err
        assert "\nnext: run it on a machine " in err, err
    status, out, err = run(bench, "copy.crc", "gpu-restore", "--bytes", "1MiB", "--n", "3", driver=driver)
    assert status == 1 and check_line(out, CASES)["case"] == "copy.crc", (status, out, err)


def check_cases(bench, driver, cases, ranks, times, nodes):
    """Runs cases; the lines of a coordinator are those of so many nodes. What is printed behind them."""
    arguments = ("--bytes", "1MiB", "--tensors", "10", "--ranks", ranks, "--n", times)
    status, out, err = run(bench, *cases, *arguments, driver=driver)
    assert status == 0 and not err, err
    lines = out.splitlines()
    other = {name for name in COORDINATOR if int(name.split(".")[1]) not in nodes}
    wanted = [name for name in CASES if name not in other]
    ours = [check_line(line, CASES, times=int(times)) for line in lines[: len(wanted)]]
    assert [line["case"] for line in ours] == wanted, out
    return lines[len(wanted) :]


def check_all(bench, driver):
    """With one rank `coordinator` is of 64 and of 1,250 nodes: half a minute, by night."""
    if os.environ.get("CKPTD_NIGHTLY"):
        check_cases(bench, driver, ("all",), "1", "1", {64, 1250})
    else:
        others = [name for name in CASES if name not in SECOND]
        middle = others.index("agent.rest")
        check_cases(bench, driver, (*others[:middle], "copies", *others[middle:], "protocol"), "1", "1", set())
    for name, line in zip(GPU_CASES, check_cases(bench, driver, ("all",), "2", "3", {8}), strict=True):
        found = json.loads(line)
        assert set(found) == {"case", "skipped"} and found["case"] == name, found
        assert found["skipped"].startswith("no CUDA driver here"), found


def check_usage(bench):
    skipped = json.loads(run(bench, "adopt", "--bytes", "100TiB")[1])
    assert skipped["case"] == "adopt" and "memory" in skipped["skipped"], skipped
    described = run(bench, "--help")[1]
    assert all(case in described for case in {*CASES, *GPU_CASES} - SECOND)
    for bad in (["no.such"], [], ["adopt", "--n", "0"], ["adopt", "--bytes"], ["--nonsense", "1"]):
        status, out, err = run(bench, *bad)
        assert status == 2 and not out and "ckptd-bench" in err, (bad, status, out, err)


def main():
    build = pathlib.Path(sys.argv[1])
    bench, host_device = build / "bin" / "ckptd-bench", build / "lib" / "fakecuda"
    if not bench.exists():
        print(f"skipped: no {bench} in this build")
        return 77
    before = leftovers()
    if "control.status" not in run(bench, "--help")[1]:
        for name in ("control.status", *PROTECTED, *CAPTURED, *RECOVERED, *COPIES):  # a build without gRPC
            del CASES[name]
    with tempfile.TemporaryDirectory() as none:  # a machine without a driver, whatever this one has
        (pathlib.Path(none) / "libcuda.so.1").write_text("")
        check_all(bench, none)
        check_no_driver(bench, none)
    check_usage(bench)
    on = "no host device in this build"
    if (host_device / "libcuda.so.1").exists():
        check_host_device(bench, host_device)
        on = f"{len(GPU_CASES)} on the host device"
    assert leftovers() <= before, leftovers() - before
    print(f"{len(CASES)} cases, 1 and 2 ranks; {on}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
