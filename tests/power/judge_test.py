#!/usr/bin/env python3
"""The judge of the power cuts finds nothing in a sound story, and something when one line of it is changed."""

from __future__ import annotations

import json
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from judge import Judge, Lost  # noqa: E402


def listed(*steps: int, **changes: object) -> str:
    about = {"attempt": 1, "durable": True, "deleting": False, **changes}
    return "LIST " + json.dumps({"snapshots": [{"step": step, **about} for step in steps]})


FIRST = ["MOUNTED", "SERVING", listed(), "LOOKED", *["RESTORED step=0 source=0 attempt=1 snapshot_attempt=0"] * 2]
FIRST += ["SAVE 5", "CAPTURED 5", "DURABLE 5", "DURABLE 5", "SAVE 7", "DURABLE 7", "SAVE 9"]
# Steps 5 and 7 are committed; of 9 all parts are there and no manifest; of 10 one part.
SECOND = {
    "mounted": "MOUNTED",
    "five": "FOUND step-0000000005.a0001 1 2",
    "seven": "FOUND step-0000000007.a0001 1 2",
    "nine": "FOUND step-0000000009.a0001 0 2",
    "ten": "FOUND step-0000000010.a0001 0 1",
    "serving": "SERVING",
    "list": listed(7, 5),
    "verified 7": "VERIFIED 7 0",
    "verified 5": "VERIFIED 5 0",
    "looked": "LOOKED",
    "rank 0": "RESTORED step=9 source=5 attempt=2 snapshot_attempt=1",
    "rank 1": "RESTORED step=9 source=5 attempt=2 snapshot_attempt=1",
}


class JudgeTest(unittest.TestCase):
    def tell(self, **changes: str) -> Judge:
        judge = Judge(world=2)
        for line in FIRST:
            judge.hear(line)
        judge.begin()
        for name, line in SECOND.items():
            judge.hear(changes.get(name.replace(" ", "_"), line))
        return judge

    def restored(self, line: str) -> dict[str, str]:
        return {"rank_0": line, "rank_1": line}

    def test_a_sound_story(self) -> None:
        judge = self.tell()
        self.assertTrue(judge.looked)
        self.assertEqual((judge.acknowledged, judge.acknowledgements), (7, 2))
        self.tell(**self.restored("RESTORED step=7 source=5 attempt=2 snapshot_attempt=1"))

    def test_an_acknowledged_step_that_is_not_there(self) -> None:
        with self.assertRaisesRegex(Lost, "step 7 was acknowledged; listed are"):
            self.tell(list=listed(5))
        with self.assertRaisesRegex(Lost, "step 7 was acknowledged, .5. restored"):
            self.tell(**self.restored("RESTORED step=5 source=5 attempt=2 snapshot_attempt=1"))

    def test_what_was_not_committed_is_offered(self) -> None:
        with self.assertRaisesRegex(Lost, "step 9 of attempt 1 is listed, and not committed"):
            self.tell(list=listed(9, 7))
        with self.assertRaisesRegex(Lost, "step 7 of attempt 1 is listed, and not committed"):
            self.tell(list=listed(7, durable=False))
        with self.assertRaisesRegex(Lost, ".10. restored"):
            self.tell(**self.restored("RESTORED step=10 source=5 attempt=2 snapshot_attempt=1"))

    def test_a_listed_step_that_is_damaged(self) -> None:
        with self.assertRaisesRegex(Lost, "ckptctl verify says 5"):
            self.tell(verified_5="VERIFIED 5 5")
        with self.assertRaisesRegex(Lost, "not all that is listed was verified"):
            self.tell(verified_5="")
        with self.assertRaisesRegex(Lost, "skipped: step=7"):
            self.tell(rank_0="SKIPPED step=7 code=CORRUPT")

    def test_what_retention_deletes_need_not_verify(self) -> None:
        deleting = json.loads(listed(7, 5)[5:])
        deleting["snapshots"][1]["deleting"] = True
        self.tell(list="LIST " + json.dumps(deleting), verified_5="VERIFIED 5 4")

    def test_ranks_that_disagree_and_attempts_that_come_again(self) -> None:
        with self.assertRaisesRegex(Lost, ".9, 7. restored"):
            self.tell(rank_1="RESTORED step=7 source=5 attempt=2 snapshot_attempt=1")
        with self.assertRaisesRegex(Lost, "attempts .1. after attempt 1"):
            self.tell(**self.restored("RESTORED step=9 source=5 attempt=1 snapshot_attempt=1"))

    def test_a_file_system_or_a_process_that_complains(self) -> None:
        for line in ("FS EXT4-fs error (device vda)", "ENDED trainer-0 1", "WRONG mount: no"):
            with self.assertRaises(Lost):
                self.tell(looked=line)


if __name__ == "__main__":
    unittest.main()
