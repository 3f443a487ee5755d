#!/usr/bin/env python3
"""The disk of the power cuts loses what a real one may lose, and nothing else."""

from __future__ import annotations

import pathlib
import random
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from disk import PIECE, Cache  # noqa: E402


class Fixed(random.Random):
    """A power failure that keeps everything, or nothing."""

    def __init__(self, kept: float) -> None:
        super().__init__(1)
        self._kept = kept

    def choice(self, _):  # noqa: ANN001
        return self._kept


class CacheTest(unittest.TestCase):
    def setUp(self) -> None:
        self._file = tempfile.NamedTemporaryFile()
        self._file.truncate(8 * PIECE)
        self._cache = Cache(self._file.name)

    def tearDown(self) -> None:
        self._cache.close()
        self._file.close()

    def medium(self, piece: int) -> bytes:
        return pathlib.Path(self._file.name).read_bytes()[piece * PIECE : (piece + 1) * PIECE]

    def test_what_was_written_is_read_before_it_is_flushed(self) -> None:
        self._cache.write(100, b"a" * PIECE, forced=False)
        self._cache.write(200, b"b", forced=False)
        self.assertEqual(self._cache.read(99, PIECE + 2), b"\0" + b"a" * 100 + b"b" + b"a" * (PIECE - 101) + b"\0")
        self.assertEqual(self.medium(0), bytes(PIECE))

    def test_what_was_flushed_stays(self) -> None:
        self._cache.write(0, b"a" * PIECE, forced=False)
        self._cache.flush()
        self._cache.write(0, b"b" * PIECE, forced=False)
        self._cache.cut(Fixed(0.0))
        self.assertEqual(self.medium(0), b"a" * PIECE)
        self.assertEqual(self._cache.read(0, PIECE), b"a" * PIECE)

    def test_a_write_with_fua_stays_and_no_older_one_comes_back(self) -> None:
        for kept in (0.0, 1.0):
            self._cache.write(0, b"a" * PIECE, forced=False)
            self._cache.write(0, b"b" * PIECE, forced=True)
            self._cache.write(PIECE, b"c" * PIECE, forced=False)
            self._cache.cut(Fixed(kept))
            self.assertEqual(self.medium(0), b"b" * PIECE)
            self.assertEqual(self.medium(1), b"c" * PIECE if kept else bytes(PIECE))

    def test_any_piece_may_be_lost_and_any_version_of_it_stay(self) -> None:
        seen = set()
        for seed in range(400):
            self._cache.write(0, b"0" * 2 * PIECE, forced=True)
            self._cache.write(0, b"a" * 2 * PIECE, forced=False)
            self._cache.write(0, b"b" * PIECE, forced=False)
            self._cache.cut(random.Random(seed))
            seen.add(self.medium(0)[:1] + self.medium(1)[:1])
        self.assertEqual(seen, {b"00", b"0a", b"a0", b"aa", b"b0", b"ba"})


if __name__ == "__main__":
    unittest.main()
