"""The table at the end."""

from dataclasses import dataclass


@dataclass
class Row:
    scene: str
    resumed: str = "-"
    lost: int | None = None
    seconds: float | None = None
    restore_seconds: float | None = None
    verdict: str = "not played"

    def cells(self):
        seconds = "-" if self.seconds is None else f"{self.seconds:.1f}"
        if self.restore_seconds is not None:
            seconds += f" (restore {self.restore_seconds:.2f})"
        return [self.scene, self.resumed, "-" if self.lost is None else str(self.lost), seconds, self.verdict]


def print_table(rows):
    """Prints it; true if every run was bit-exact."""
    table = [["scene", "resumed from", "steps lost", "seconds to resume", "verdict"], *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    print()
    for number, cells in enumerate(table):
        print("  ".join(cell.ljust(width) for cell, width in zip(cells, widths)).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))
    print(flush=True)
    return all(row.verdict == "bit-exact" for row in rows)
