"""Power failures at random moments of a disk's life, and what the next life finds.

A chain is one disk from mkfs on, with a number of cuts. A life begins with the mount (the journal is replayed) and the
agent, which recovers; all that is listed is looked at, trainers restore and go on. How it ends is drawn before: at the
n-th write or flush that the disk is asked for, some time after its beginning (both may fall into mount or recovery),
or just after a step was acknowledged. The life after a chain's last cut ends when all has been looked at. All is drawn
from the chain's seed; when things happen in the guest is not.
"""

from __future__ import annotations

import pathlib
import random
import subprocess
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Callable

from disk import Disk
from guest import Broken, Guest, Machine
from judge import Judge, Lost, Stuck

# name: type, mount options, how it is made. Nothing shall be on the medium because some seconds have passed
# (commit=300, and see `life`): on a slow machine that would be nearly all.
FILE_SYSTEMS = {
    "ext4": ("ext4", "commit=300", "mkfs.ext4 -q -F"),
    "ext4-writeback": ("ext4", "data=writeback,noauto_da_alloc,commit=300", "mkfs.ext4 -q -F"),
    "xfs": ("xfs", "rw", "mkfs.xfs -q -f"),
}
SIZE_MIB = 320  # XFS has no less than 300
SILENCE = 120.0  # seconds without a word from the guest
_PATIENCE = 900.0  # seconds of a life until what it waits for
_WORDS = 10  # a life is cut after at most so many acknowledgements, where it is cut after one


@dataclass(frozen=True)
class Plan:
    """How the lives of one disk go."""

    name: str  # of the chain, which is its seed
    file_system: str
    disk: str = "volatile"
    without: str = "none"  # see no_sync.cc
    ends: tuple[str, ...] = ("request", "request", "moment", "word")  # one of them, drawn for each life


@dataclass
class Result:
    """Of one chain. What was lost is a sentence."""

    cuts: int = 0
    acknowledged: int = 0
    phases: Counter = field(default_factory=Counter)  # where the cuts fell
    cached: int = 0  # pieces in the disk's cache at the cuts
    dropped: int = 0
    seconds: float = 0.0
    lost: str = ""
    stuck: bool = False  # of that kind


class Chain:
    def __init__(self, machine: Machine, work: pathlib.Path, plan: Plan) -> None:
        self._chance = random.Random(plan.name)
        self._plan = plan
        self._machine = machine
        self._world = self._chance.choice([1, 2])
        self._bytes = self._chance.choice([64, 256, 1024]) << 10
        self._seed = self._chance.randrange(1 << 30)
        # no_sync.cc sees no call of io_uring's.
        self._io = "threads" if plan.without != "none" else self._chance.choice(["uring", "uring", "threads"])
        self._judge = Judge(self._world)
        self._result = Result()
        self._usual_seconds, self._usual_requests = 4.0, 200  # a life of some acknowledgements
        self._image = work / "disk"
        self._address = str(work / "nbd")
        _make(self._image, plan.file_system)

    def run(self, cuts: int) -> Result:
        disk = Disk(str(self._image), self._address, self._plan.disk)
        began = time.monotonic()
        try:
            while self._result.cuts < cuts:
                self._live(disk, last=False)
            self._live(disk, last=True)
        except Lost as lost:
            self._result.lost = f"{self._plan.name}, {self._plan.file_system}, cut {self._result.cuts}: {lost}"
            self._result.stuck = isinstance(lost, Stuck)
        finally:
            disk.close()
        self._result.seconds = time.monotonic() - began
        self._result.acknowledged = self._judge.acknowledgements
        return self._result

    def _live(self, disk: Disk, last: bool) -> None:
        self._judge.begin()
        kind, options, _ = FILE_SYSTEMS[self._plan.file_system]
        guest = self._machine.start(
            f"{kind} {options} {self._io} {self._world} {self._bytes} {self._seed} {self._plan.without}", self._address
        )
        try:
            if last:
                self._await(guest, lambda: self._judge.looked)
            else:
                self._wait_for_the_cut(guest, disk)
        finally:
            phase = self._judge.phase
            disk.power_off()
            guest.kill()
        self._hear_the_rest(guest)
        cached, dropped = disk.cut(self._chance)
        if not last:
            self._result.cuts += 1
            self._result.phases[phase] += 1
            self._result.cached += cached
            self._result.dropped += dropped

    def _wait_for_the_cut(self, guest: Guest, disk: Disk) -> None:
        kind = self._chance.choice(self._plan.ends)
        began = time.monotonic()
        if kind == "request":
            disk.arm(self._chance.randint(1, self._usual_requests), guest.console.nudge)
            self._await(guest, lambda: not disk.powered)
        elif kind == "moment":
            self._hear_until(guest, began + self._chance.uniform(0, self._usual_seconds), lambda: False)
        else:
            self._wait_for_words(guest, self._chance.randint(1, _WORDS))
            self._usual_seconds, self._usual_requests = time.monotonic() - began, disk.asked

    def _wait_for_words(self, guest: Guest, wanted: int) -> None:
        more = self._chance.choice([0.0, self._chance.uniform(0, 0.05)])
        self._await(guest, lambda: self._judge.acknowledged_here >= wanted)
        self._hear_until(guest, time.monotonic() + more, lambda: False)

    def _await(self, guest: Guest, done: Callable[[], bool]) -> None:
        self._hear_until(guest, time.monotonic() + _PATIENCE, done)
        if not done():
            raise Stuck(f"no step of {self._judge.phase} ended in {_PATIENCE:.0f} s: {self._judge.last}")

    def _hear_until(self, guest: Guest, moment: float, done: Callable[[], bool]) -> None:
        """Until `done` or the moment. Raises Lost."""
        heard = time.monotonic()
        while not done() and (now := time.monotonic()) < moment:
            try:
                line = guest.console.line(min(moment - now, SILENCE))
            except EOFError:
                if code := guest.exit_code():
                    raise Broken(f"QEMU ended with {code}: {self._judge.last}") from None
                raise Stuck(f"the guest's kernel ended in {self._judge.phase}: {self._judge.last}") from None
            if line is not None:
                heard = now
                self._judge.hear(line)
            elif now > heard + SILENCE:
                raise Stuck(f"no word from the guest in {self._judge.phase} for {SILENCE:.0f} s")

    def _hear_the_rest(self, guest: Guest) -> None:
        try:
            while (line := guest.console.line(0)) is not None:
                self._judge.hear(line)
        except EOFError:
            pass


def _make(image: pathlib.Path, file_system: str) -> None:
    image.unlink(missing_ok=True)
    with open(image, "wb") as file:
        file.truncate(SIZE_MIB << 20)
    command = FILE_SYSTEMS[file_system][2].split()
    subprocess.run([*command, str(image)], check=True, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
