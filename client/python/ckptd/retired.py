"""Tables that are no layout any more, and whose memory somebody may still read."""

from __future__ import annotations

from .session import Session
from .state import Table


class Retired:
    """The copy thread reads a table's memory until its last capture is over; a copier has it open until it was told to
    let go of it, and memory that is freed before is undefined behaviour in CUDA."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._tables: list[tuple[int, Table]] = []  # by the number of their registration

    def add(self, table: Table, number: int) -> None:
        self._tables.append((number, table))
        if len(self._tables) > 2:  # more than one capture is never under way
            self._keep(self._tables[:-2], self._tables[-2:])

    def captured(self) -> None:
        """A capture of the present table has begun: the earlier ones are over."""
        self._keep(self._tables, [])

    def _keep(self, older: list[tuple[int, Table]], newer: list[tuple[int, Table]]) -> None:
        exported = self._session.info().exported if older else 0
        self._tables = [pair for pair in older if pair[0] == exported] + newer

    def release(self) -> None:
        """Drops every reference to the state's memory."""
        while self._tables:
            self._tables.pop()[1].release()
