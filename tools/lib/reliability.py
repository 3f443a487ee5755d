"""Measures what ckptd promises and writes it into tests/RELIABILITY.md: see tools/reliability --help.

A figure is a section of that file: the command, when, on what, and the lines that it printed. Sections of figures that
are not measured now stay as they are. What is written is what was printed; no number is made here.
"""

import argparse
import datetime
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "tests" / "RELIABILITY.md"
HEAD = """# What was promised, measured

Each figure with the command that makes it again; `tools/reliability` runs them and writes this file. N tried and N lost
stand in the lines. For independent random trials with none lost, the chance of a loss is below 3/N (95 %); sweeps count
distinct states and tell which removed protections they noticed instead.
"""


@dataclass(frozen=True)
class Figure:
    name: str
    title: str
    command: str  # run by bash at the top of the repository
    lines: str  # what of its output is kept
    build: str = "dev"  # preset, or preset and targets: what tools/build is called with


FIGURES = [
    Figure(
        "kills",
        "Trainer and agent killed at random moments (SIGKILL): resumed bit for bit, nothing captured lost",
        "CKPTD_KILLS=1000 build/dev/bin/random_kill_test",
        r"^seed .*",
    ),
    Figure(
        "points",
        "Killed at every system call of publish, commit, retention, roll-back, recovery and start-up; at every labelled "
        "point of save, flush, commit, restore, mending and start-up",
        "export CKPTD_NIGHTLY=1; CKPTD_STARTS=12 build/dev/bin/syscall_kill_test && "
        "build/dev/bin/agent_start_test --gtest_filter='*Killed*:*Lost*' && "
        "build/dev/bin/labelled_kill_test",
        r"^(?:kill|start): .*|^\[==========\] \d+ tests? .* ran.*|^\[  (?:PASSED|FAILED)  \] \d+ tests?.*",
    ),
    Figure(
        "errno",
        "An error at every system call of the same (of 7 kinds every fourth in turn, so one or two of each call), at every "
        "completion of io_uring, short transfers: wrong acknowledgements, crashes, hangs, leaks; protections removed",
        "export CKPTD_ERROR_STRIDE=4; build/dev/bin/syscall_errno_test && build/dev/bin/uring_errno_test && "
        "build/dev/bin/agent_start_test --gtest_filter='*Error*:*Thread*:*Lost*'",
        r"^(?:errors|short transfers|io_uring|start): .*",
    ),
    Figure(
        "power",
        "Power failures, simulated: every disk that may be left, recovered by the real code; protections removed",
        "CKPTD_CRASH_STATES=1000000 build/release/bin/crash_states_test",
        r"^.*(?:distinct|states  ).*",
        build="release crash_states_test",
    ),
    Figure(
        "power-cuts",
        "Power failures of a guest at random moments, its disk losing what was not flushed; protections removed",
        "tests/power/run --cuts ${CKPTD_CUTS:-3000} --guests 2 --record tests/power/cuts.jsonl --prove 9",
        r"^(?:with.* noticed after .*|volatile disk, .*|skipped: .*|.*NOT NOTICED.*|.* LOST: .*)",
        build="release",
    ),
    Figure(
        "corruption",
        "Stored bytes that go bad: journal, images, sidecars, manifests. noticed = an error instead of wrong bytes",
        "CKPTD_CORRUPTIONS=100000 build/dev/bin/corruption_test && "
        "CKPTD_CORRUPTIONS=100000 build/dev/bin/corrupt_slot_test",
        r"^.* cases: .*",
    ),
    Figure(
        "protocol",
        "The protocol of ranks and agents, simulated with faults: steps without a broken invariant; rules removed",
        "for w in alone copies strikes parity apart; do CKPTD_STEPS=100000000 build/dev/bin/protocol_run 0 0 $w || exit 1; done; "
        "build/dev/bin/protocol_run --mutants",
        r"^(?:seed \d+.*|.*\d+ steps.*|VIOLATION .*)",
    ),
    Figure(
        "deaths",
        "Trainers that die with live workers (forked children): noticed, and what is left behind; what an agent takes",
        "CKPTD_KILLS=1000 build/dev/bin/deaths_test && build/dev/bin/leak_test",
        r"^(?:\d+ deaths .*|after \d+ and .*|start \d+ ms.*|region of .*)",
    ),
    Figure(
        "memory",
        "A node without memory: who is killed, and what is left; who pays for the region. Each once more, unprotected",
        "tests/memory/run",
        r"^(?:oom|pays).*|^skipped: .*",
        build="release",
    ),
    Figure(
        "gpu-deaths",
        "Trainers with GPU state that die (host device): what the device lent comes back",
        "CKPTD_KILLS=1000 build/dev/bin/gpu_deaths_test",
        r"^(?:seed .*|after \d+ and all.*)",
    ),
    Figure(
        "gate",
        "Copier and agent killed, stopped and corrupted at every step of a pull with the gate armed (host device)",
        "build/dev/bin/pull_matrix_test",
        r"^.* cells, .*",
    ),
    Figure(
        "fuzz",
        "Fuzzing of everything that is read from outside, address and undefined-behaviour sanitizers",
        "tests/fuzz/run --seconds 600",
        r"^\w+: \d+ runs, .*",
        build="asan",
    ),
    Figure(
        "hostile",
        "A hostile local user beside a neighbour who trains: packets, descriptors, limits, others' jobs. wrong = the "
        "agent died, kept something or answered otherwise, or the neighbour waited or lost",
        "for t in wire descriptors limits storage strangers; do build/dev/bin/hostile_${t}_test || exit 1; done",
        r"^(?:hostile .*|\d+ jobs and .*|\[  SKIPPED \] [^,]*)$",
    ),
    Figure(
        "node-faults",
        "Faults between nodes that hold each other's copies (network namespaces, mutual TLS): training goes on, what is "
        "protected comes back bit for bit after the fault and the loss of a node",
        "CKPTD_NIGHTLY=1 build/dev/bin/faults_e2e_test",
        r"^(?:fault .*|skipped: .*|\[  (?:PASSED|FAILED|SKIPPED) +\] \d+ tests?.*)",
        build="dev faults_e2e_test ckptd ckpt-trainer ckptctl",
    ),
    Figure(
        "rebuild",
        "The rebuild matrix of copies: every set of up to one node more than the scheme outlives is lost, of four, in "
        "six ways; from memory exactly when every rank's part is left, else from storage or a typed error",
        "CKPTD_NIGHTLY=1 build/dev/bin/rebuild_test",
        r"^(?:rebuild .*|\[  (?:PASSED|FAILED)  \] \d+ tests?.*)",
        build="dev rebuild_test ckptd ckpt-trainer ckptctl",
    ),
    Figure(
        "soak",
        "Mixed faults on two jobs of 2 and 3 ranks: no going back, whole or an error, nothing leaks",
        "CKPTD_SOAK_SECONDS=${CKPTD_SOAK_SECONDS:-1800} build/dev/bin/soak_test",
        r"^soak.*",
    ),
    Figure(
        "restart",
        "An agent's restart until it serves reads, by the size of the region that it finds",
        "for bytes in 64MiB 1GiB 4GiB; do build/release/bin/ckptd-bench adopt --bytes $bytes --n 30 || exit 1; done",
        r"^\{.*",
        build="release",
    ),
    Figure(
        "checksum",
        "What a checksum costs: a copy that computes it on the way, beside memcpy",
        "build/release/bin/ckptd-bench copy.crc --n 30",
        r"^\{.*",
        build="release",
    ),
    Figure(
        "systemd",
        "The service under the real systemd; exposure of its unit (2.0 or less is asserted)",
        "bash tests/package/systemd.sh . build/dev",
        r"^(?:ok|FAILED|-> Overall|\w+: restarted).*",
    ),
    Figure(
        "packages",
        "Debian packages under the real systemd: lintian, install, upgrade under a trainer, remove, purge",
        "bash tests/package/debian.sh . build/release",
        r"^(?:ok|FAILED|lintian|upgraded).*",
        build="release",
    ),
    Figure(
        "coverage",
        "Lines that the C++ tests run, by room: at least 90 %, 96 % where a snapshot is kept whole",
        "tools/test --leg coverage; status=$?; cat build/logs/coverage/log; exit $status",
        r"^(?:\S+ +\d+\.\d % of .*|\S+ is not counted: .*|\d+ rooms, .*)",
        build="coverage",
    ),
]


def machine():
    memory = int(re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]) / (1 << 20)
    system = re.search(r'^PRETTY_NAME="?([^"\n]+)', Path("/etc/os-release").read_text(), re.MULTILINE)[1]
    return f"{len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB, {system}"


def commit():
    git = ["git", "-C", str(ROOT), "-c", "safe.directory=*"]
    name = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    sources = [".", ":!tests/RELIABILITY.md", ":!tests/power/cuts.jsonl"]  # all but what is written here
    dirty = subprocess.run([*git, "status", "--porcelain", "--", *sources], capture_output=True)
    return name + (", with changes that are not committed" if dirty.stdout.strip() else "")


def sections():
    """name: text, in the order of the file."""
    text = FILE.read_text() if FILE.exists() else ""
    found = re.findall(r"^## (\S+): (.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return {name: f"## {name}: {body.rstrip()}\n" for name, body in found}


def measure(figure):
    """The figure's section, and whether its command succeeded."""
    measured = commit()
    began = time.monotonic()
    ran = subprocess.run(["bash", "-c", figure.command], cwd=ROOT, capture_output=True, text=True, errors="replace")
    seconds = time.monotonic() - began
    kept = re.findall(figure.lines, ran.stdout, re.MULTILINE)
    ok = ran.returncode == 0 and bool(kept)
    log = ROOT / "build" / "logs" / f"reliability-{figure.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(ran.stdout + ran.stderr)
    verdict = "passed" if ok else f"FAILED (exit {ran.returncode}, {len(kept)} lines; log {log.relative_to(ROOT)})"
    when = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    facts = f"{when}, {seconds:.0f} s, {machine()}, commit {measured}: **{verdict}**"
    quoted = "\n".join(kept)
    return f"## {figure.name}: {figure.title}\n\n`{figure.command}`\n\n{facts}\n\n```\n{quoted}\n```\n", ok


def write(known):
    order = [figure.name for figure in FIGURES]
    names = sorted(known, key=lambda name: order.index(name) if name in order else len(order))
    FILE.write_text(HEAD + "".join(f"\n{known[name]}" for name in names))


def build(figures):
    for words in sorted({figure.build for figure in figures}):
        if subprocess.run(["bash", "tools/build", *words.split()], cwd=ROOT).returncode != 0:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(
        prog="tools/reliability", description="Measures what ckptd promises; writes tests/RELIABILITY.md."
    )
    parser.add_argument("figure", nargs="*", help="only these; else all")
    parser.add_argument("--list", action="store_true", help="the figures and their commands")
    parser.add_argument("--no-build", action="store_true", help="take what build/ holds")
    options = parser.parse_args()
    if options.list:
        for figure in FIGURES:
            print(f"{figure.name:11} {figure.title}\n{'':11} {figure.command}")
        return 0
    chosen = [figure for figure in FIGURES if figure.name in options.figure or not options.figure]
    unknown = set(options.figure) - {figure.name for figure in FIGURES}
    if unknown:
        print(f"tools/reliability: no figure named {', '.join(sorted(unknown))}; --list names them", file=sys.stderr)
        return 2
    if not options.no_build and not build(chosen):
        return 1
    failed = 0
    for figure in chosen:
        print(f"{figure.name}: {figure.command}", flush=True)
        section, ok = measure(figure)
        failed += not ok
        known = sections()
        known[figure.name] = section
        write(known)
        print(section.split("```\n")[1] + ("" if ok else "FAILED\n"), flush=True)
    print(f"{len(chosen) - failed} of {len(chosen)} figures stand; {FILE.relative_to(ROOT)}")
    return 1 if failed else 0


sys.exit(main())
