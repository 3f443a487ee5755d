"""What a run found, as Markdown that a file of results can take over."""

from __future__ import annotations

import pathlib
import shlex
import time
from collections.abc import Callable, Iterable
from typing import Any

from results import OK, table, text

Finding = dict[str, Any]
_KINDS = ("legacy", "posix_fd", "no_handle", "pool")
_TRAINED = ("gpt", "restore", "graphs", "expandable", "compile")
_OF_TRAINED = ("device", "killed_at_step", "step", "source", "restore_seconds", "losses_compared", "equal_restored",
               "equal_at_the_end")  # fmt: skip
_OF_FIGURES = ("limit", "ratio", "n", "spread")


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [_row(head), _row(["---"] * len(head)), *map(_row, rows)] if rows else []


def _section(title: str, lines: list[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _handle(finding: Finding) -> str:
    values = finding["values"]
    if "error" in values:
        return f"{finding['status']}, {values['error']}"
    rate = values.get("bytes_per_second")
    return finding["status"] + (f", {rate / 1e9:.3g} GB/s" if rate else "")


def _death(finding: Finding) -> str:
    values = finding["values"]
    if "room_after" not in values:
        return finding["status"]
    room = f"room after {values['room_after']}, {values['seconds_until_room']:.2f} s"
    return f"{finding['status']}, copy: {values.get('copy', 'none')}, {room}"


def _kinds(findings: list[Finding], part: str, cell: Callable[[Finding], str]) -> list[str]:
    """Rows: what was done; columns: kinds of memory."""
    cells: dict[str, dict[str, str]] = {}
    for finding in findings:
        words = finding["case"].split(", ")
        kind = next((word for word in words if word in _KINDS), None)
        if finding["part"] == part and kind:
            what = ", ".join(word for word in words if word != kind)
            cells.setdefault(what, {})[kind] = cell(finding)
    rows = [[what, *(found.get(kind, "") for kind in _KINDS)] for what, found in cells.items()]
    return _table(["", *_KINDS], rows)


def figures(findings: list[Finding]) -> list[str]:
    """A table of what has a unit: its value, or why it has none."""
    rows = []
    for finding in findings:
        values = finding["values"]
        if "unit" in values:
            why = f"{finding['status']}: {finding.get('reason', '')}"
            value = f"{text(values['value'])} {values['unit']}" if "value" in values else why
            rest = [text(values.get(name, "")) for name in _OF_FIGURES]
            rows.append([finding["case"], values.get("device", ""), value, *rest])
    return _table(["figure", "on", "value", *_OF_FIGURES], rows)


def _milliseconds(values: Finding, name: str) -> str:
    """Median and greatest."""
    if f"{name}_seconds" not in values:
        return "-"
    return " (".join(f"{values[f'{which}{name}_seconds'] * 1e3:.3g}" for which in ("", "most_")) + ")"


def _share(values: Finding, name: str) -> str:
    low, high = values[f"{name}_interval"]
    return f"{values[name] * 100:.2f} % ({low * 100:.2f} to {high * 100:.2f})"


def ways(findings: list[Finding]) -> list[str]:
    """A table of the ways to save: what each costs, or why it was not measured."""
    rows = []
    for finding in findings:
        values = finding["values"]
        if "way" in values and "loss" not in values:
            rows.append([values["way"], f"{finding['status']}: {text(finding.get('reason', ''))}", *[""] * 6])
        elif "way" in values:
            times = [_milliseconds(values, "blocked"), _milliseconds(values, "gate_stream")]
            losses = [_share(values, "loss"), _share(values, "again")]
            rest = [text(values["done_seconds"]), text(values["n"])]
            rows.append([values["way"], values["device"], *times, *losses, *rest])
    return _table(["way", "on", "host blocked, ms (most)", "gate on the stream, ms (most)", "step longer by (95 %)",
                   "A/A (95 %)", "on the disk, s", "n"], rows)  # fmt: skip


def _trained(findings: list[Finding]) -> list[str]:
    rows = [
        [one["part"], one["case"], one["status"], *(text(one["values"].get(name, "")) for name in _OF_TRAINED)]
        for one in findings if one["part"] in _TRAINED
    ]  # fmt: skip
    return _table(["part", "case", "result", *_OF_TRAINED], rows)


def _head(findings: list[Finding], began: float, command: list[str]) -> list[str]:
    probed = [finding for finding in findings if finding["part"] == "probe" and finding["status"] == OK]
    values = {finding["case"]: finding["values"] for finding in probed}
    device = values.get("device", {"name": "not probed", "driver": "not probed"})
    driver = values.get("nvidia-smi", {}).get("driver_version", device["driver"])
    date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(began))
    return [f"* date: {date}", f"* GPU: {device['name']}; driver: {driver}", f"* command: `{shlex.join(command)}`"]


def write(path: pathlib.Path, findings: list[Finding], began: float, command: list[str]) -> None:
    """Replaces `path`. command: as it was called."""
    lines = _head(findings, began, command)
    lines += _section("What each kind of memory did: handles", _kinds(findings, "handles", _handle))
    lines += _section("What each kind of memory did: deaths", _kinds(findings, "deaths", _death))
    lines += _section("Figures", figures(findings))
    lines += _section("Ways to save", ways(findings))
    lines += _section("Killed trainers", _trained(findings))
    lines += _section("Everything", [table(findings).replace("\n## ", "\n### ")])
    path.write_text("\n".join(lines) + "\n")
