#!/usr/bin/env python3
"""What is heard of a guest whose power fails while it speaks."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

from guest import Console  # noqa: E402


class ConsoleTest(unittest.TestCase):
    def test_a_line_that_was_cut_short_was_not_said(self) -> None:
        with subprocess.Popen(["printf", r"MOUNTED\r\nLIST {"], stdout=subprocess.PIPE) as process:
            console = Console(process)
            self.assertEqual(console.line(10), "MOUNTED")
            with self.assertRaises(EOFError):
                console.line(10)
            console.join()


if __name__ == "__main__":
    unittest.main()
