"""What a guest may say after a power failure, given what all guests before it on the same disk said."""

from __future__ import annotations

import json
import re


class Lost(Exception):
    """A promise was broken, and which."""


class Stuck(Lost):
    """Nobody could look: a process or the guest ended, or does nothing any more. No less a failure."""


class Judge:
    """Of one disk, from its first life on. hear() takes the console's lines, begin() begins a life.

    What must hold in every life:
      - what the agent lists is durable, its folder has a manifest, and every chunk of it verifies;
      - the newest step that is listed is no older than any that was acknowledged, and is the one that all ranks
        restore, unless one is newer of which only the manifest is missing: the job writes that when it begins. The
        trainers compare what they restored bit by bit, and end if it is wrong;
      - the number of an attempt is greater than every one before it: it is what keeps old processes out;
      - nobody ends, and the file system has no complaint.
    """

    def __init__(self, world: int) -> None:
        self._world = world
        self.acknowledged = 0  # the newest step of which any trainer was told that it is durable
        self.acknowledgements = 0
        self.last = ""  # the line that was heard last
        self._attempt = 0  # the newest that any trainer of an earlier life was told
        self._attempts: set[int] = set()
        self.begin()

    def begin(self) -> None:
        self._attempt = max([self._attempt, *self._attempts])
        self.phase = "mount"  # then agent, look, restore, work
        self.acknowledged_here = 0
        self.restored: list[int] = []
        self._owed = self.acknowledged
        self._folders: dict[tuple[int, int], tuple[bool, bool]] = {}  # (step, attempt): (manifest, all sidecars)
        self._listed: dict[int, bool] = {}  # whether it was verified
        self._attempts = set()
        self._log: list[str] = []

    @property
    def looked(self) -> bool:
        """All that can be asked after a power failure has been asked."""
        return self.phase == "work"

    def hear(self, line: str) -> None:
        self.last = line or self.last
        word, _, rest = line.partition(" ")
        hear = getattr(self, f"_hear_{word.lower()}", None)
        if hear is not None:
            hear(rest)

    def _hear_mounted(self, _: str) -> None:
        self.phase = "agent"

    def _hear_serving(self, _: str) -> None:
        self.phase = "look"

    def _hear_found(self, rest: str) -> None:
        name, manifest, sidecars = rest.split()
        step, attempt = re.fullmatch(r"step-(\d+)\.a(\d+)", name).groups()
        self._folders[int(step), int(attempt)] = (manifest == "1", int(sidecars) == self._world)

    def _hear_list(self, rest: str) -> None:
        for about in json.loads(rest)["snapshots"]:
            step, attempt = int(about["step"]), int(about["attempt"])
            if not about["durable"] or not self._folders.get((step, attempt), (False,))[0]:
                raise Lost(f"step {step} of attempt {attempt} is listed, and not committed: {about}, {self._folders}")
            self._listed[step] = bool(about["deleting"])  # what retention is about to delete need not verify
        if max(self._listed, default=0) < self._owed:
            raise Lost(f"step {self._owed} was acknowledged; listed are {sorted(self._listed)}, of {self._folders}")

    def _hear_verified(self, rest: str) -> None:
        step, code = map(int, rest.split())
        if code != 0 and not self._listed[step]:
            raise Lost(f"step {step} is listed, and ckptctl verify says {code}: {self._log}")
        self._listed[step] = True

    def _hear_looked(self, _: str) -> None:
        if not all(self._listed.values()):
            raise Lost(f"not all that is listed was verified: {self._listed}")
        self.phase = "restore"

    def _hear_restored(self, rest: str) -> None:
        about = {name: int(number) for name, number in re.findall(r"(\w+)=(\d+)", rest)}
        self.restored.append(about["step"])
        self._attempts.add(about["attempt"])
        if about["step"] < self._owed or not self._may_restore(about["step"]):
            raise Lost(f"step {self._owed} was acknowledged, {self.restored} restored; {self._listed}, {self._folders}")
        if about["attempt"] <= self._attempt or len(self._attempts) > 1:
            raise Lost(f"attempts {self._attempts} after attempt {self._attempt}")
        if len(self.restored) == self._world:
            self.phase = "work"

    def _may_restore(self, step: int) -> bool:
        """The newest that is listed; or a newer one of which only the manifest was missing: the job has written it."""
        newest = max(self._listed, default=0)
        finished = [one for (one, _), (manifest, all_parts) in self._folders.items() if all_parts and not manifest]
        return len(set(self.restored)) == 1 and (step == newest or (step > newest and step in finished))

    def _hear_skipped(self, rest: str) -> None:
        raise Lost(f"a step that is listed was skipped: {rest}")

    def _hear_durable(self, rest: str) -> None:
        if int(rest) <= self.acknowledged:  # another rank was told before
            return
        self.acknowledged = int(rest)
        self.acknowledged_here += 1
        self.acknowledgements += 1

    def _hear_fs(self, rest: str) -> None:
        raise Lost(f"the file system: {rest}")

    def _hear_wrong(self, rest: str) -> None:
        raise Stuck(f"the guest: {rest}")

    def _hear_log(self, rest: str) -> None:
        self._log.append(rest)

    def _hear_ended(self, rest: str) -> None:
        raise Stuck(f"ended: {rest}; {self._log}")
