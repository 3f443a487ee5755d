"""Scene 0, without PyTorch: a C++ trainer of 128 MiB is SIGKILLed in the middle of a capture and goes on.

usage: scene0.py WORK_FOLDER
"""

import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from report import Row, print_table
from runs import BUILD, Agent, Failed, say

STEPS = 60
EVERY = 5
KILLED = 50  # late: a machine whose memory comes slowly prepares the slots meanwhile, and drops the saves before
SOURCES = ("nothing", "region", "replica", "parity", "local", "storage", "rescued")  # ckpt_source of ckpt.h


def train(agent, job, *extra):
    """Runs the trainer to its end: exit status, what it printed, and when it said RESTORED."""
    command = [BUILD / "bin" / "ckpt-trainer", "--socket", agent.socket, "--job", job, "--steps", str(STEPS),
               "--every", str(EVERY), "--bytes", str(128 << 20), "--step-ms", "50", *extra]
    output, restored = "", 0.0
    with open(agent.base / f"{job}.log", "a") as log:
        trainer = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True)
        limit = threading.Timer(120, trainer.kill)
        limit.start()
        for line in trainer.stdout:
            output += line
            restored = time.time() if line.startswith("RESTORED") else restored
        limit.cancel()
        log.write(output)
    return trainer.wait(), output, restored


def value(output, pattern):
    found = re.search(pattern, output, re.MULTILINE)
    if not found:
        raise Failed(f"the trainer did not print {pattern}")
    return found.group(1)


def play(agent, row):
    status, wanted, _ = train(agent, "undisturbed")
    if status:
        raise Failed(f"the undisturbed run ended with {status}")
    status, _, _ = train(agent, "killed", "--kill-at", f"{KILLED}:save")
    died = time.time()
    if status != -signal.SIGKILL:
        raise Failed(f"the run to be killed ended with {status}")
    say(f"  SIGKILL right after the save of step {KILLED} began; starting the trainer again")
    status, output, restored = train(agent, "killed")
    if status:
        raise Failed(f"the resumed run ended with {status}")
    step = int(value(output, r"^RESTORED step=(\d+)"))
    source = SOURCES[int(value(output, r"^RESTORED .*source=(\d+)"))]
    row.resumed, row.lost, row.seconds = f"step {step}, {source}", KILLED - step, restored - died
    if step not in (KILLED - EVERY, KILLED):
        raise Failed(f"resumed from step {step}, not from the last save")
    same = value(wanted, r"^DIGEST (\w+)") == value(output, r"^DIGEST (\w+)")
    row.verdict = "bit-exact" if same else "DIFFERENT"


def main():
    work = Path(sys.argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    row = Row("C++ trainer killed in the middle of a capture")
    agent = Agent(work)
    try:
        say(f"  agent serves after {1000 * agent.start():.0f} ms")
        play(agent, row)
    except (Failed, OSError) as error:
        row.verdict = f"FAILED: {error}; see {work}"
    finally:
        agent.remove()
    return 0 if print_table([row]) else 1


if __name__ == "__main__":
    sys.exit(main())
