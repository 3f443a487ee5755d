"""What all runs with the same record found: one JSON object a line, one line a chain."""

from __future__ import annotations

import datetime
import json
import pathlib
import subprocess

from cuts import FILE_SYSTEMS, Plan, Result

ROOT = pathlib.Path(__file__).resolve().parents[2]


def _commit() -> str:
    git = ["git", "-C", str(ROOT), "-c", "safe.directory=*"]
    said = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True).stdout.strip()
    return said or "unknown"


class Record:
    """Kept in `path`, if there is one: chains that stand in it are not run again."""

    def __init__(self, path: pathlib.Path | None) -> None:
        self._path = path
        self._commit = _commit()  # now: the programs are those of the beginning
        self.lines: list[dict] = []
        if path is not None and path.exists():
            self.lines = [json.loads(text) for text in path.read_text().splitlines()]

    def add(self, plan: Plan, result: Result) -> None:
        new = {
            "chain": plan.name,
            "file_system": plan.file_system,
            "disk": plan.disk,
            "cuts": result.cuts,
            "acknowledged": result.acknowledged,
            "phases": dict(result.phases),
            "cached": result.cached,
            "dropped": result.dropped,
            "lost": result.lost,
            "seconds": round(result.seconds, 1),
            "when": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M"),
            "commit": self._commit,
        }
        self.lines.append(new)
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._path, "a") as file:
                file.write(json.dumps(new) + "\n")

    def cuts(self, disk: str) -> int:
        return sum(one["cuts"] for one in self.lines if one["disk"] == disk)

    def has(self, chain: str, disk: str) -> bool:
        return any(one["chain"] == chain and one["disk"] == disk for one in self.lines)

    def lost(self) -> list[str]:
        return [one["lost"] for one in self.lines if one["lost"]]

    def summary(self) -> list[str]:
        out = []
        for disk in sorted({one["disk"] for one in self.lines}):
            for file_system in FILE_SYSTEMS:
                some = [one for one in self.lines if (one["disk"], one["file_system"]) == (disk, file_system)]
                if some:
                    out.append(f"{disk} disk, {file_system}: {_told(some)}")
        return out


def _told(chains: list[dict]) -> str:
    def total(name: str) -> int:
        return sum(one[name] for one in chains)

    cuts, lost = total("cuts"), sum(one["lost"] != "" for one in chains)
    phases = ", ".join(
        f"{sum(one['phases'].get(phase, 0) for one in chains)} in {phase}"
        for phase in ["mount", "agent", "look", "restore", "work"]
    )
    bound = f" (below {300 / cuts:.2f} % a cut)" if cuts > 3 and not lost else ""
    return (
        f"{cuts} cuts, {lost} lost{bound}; {phases}; {total('acknowledged')} steps acknowledged, "
        f"{total('dropped')} of {total('cached')} unflushed blocks dropped; commits "
        + ", ".join(sorted({one["commit"] for one in chains}))
    )
