"""The options `--metrics` and `--health`, and the answers to programs that watch a process."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from shardq.cli import options, streams
from shardq.health.beat import Beat, systemd
from shardq.health.page import HealthPage, place_of
from shardq.tasks import line as lines

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from shardq.connection import Connection
    from shardq.health.vitals import Vitals
    from shardq.metrics.collector import Read
    from shardq.tasks.line import ProcessLine

metrics = options.option(
    "--metrics [HOST:]PORT",
    "Answer Prometheus at http://HOST:PORT/metrics, of all processes together, and /livez and "
    "/readyz there too. Without HOST, on loopback; port 0 is any that is free.",
)
health = options.option(
    "--health [HOST:]PORT|FILE",
    "Answer /livez and /readyz at http://HOST:PORT, or touch FILE each second while live. "
    "Live is a process whose loops turn, however busy its threads are. Ready is one whose store "
    "answers within 1 s, and that is not about to end.",
)
_PLACE = re.compile(r"(.*:)?\d+")


class Probes:
    """Pages, a file and systemd, for one process or for a supervisor.

    Ports are opened by the constructor, so that one in use ends the command before any work.

    Args:
        metrics: The value of `--metrics`.
        health: The value of `--health`.

    Raises:
        UsageError: If a place cannot be used.
        MissingExtra: If metrics are asked for, and prometheus-client is not installed.
    """

    def __init__(self, metrics: str | None, health: str | None) -> None:
        if metrics is not None:
            import shardq.metrics  # noqa: F401 - for its error, before a port is taken
        self._tell = systemd()
        self._beat: Beat | None = None
        self._file: Path | None = None
        self._pages: list[HealthPage] = []
        self._metrics = None
        try:
            if metrics is not None:
                self._metrics = HealthPage(place_of(metrics, "--metrics"), "--metrics")
                self._pages.append(self._metrics)
            if health is not None and not _PLACE.fullmatch(health):
                self._file = Path(health)
            elif health is not None and not self._is_shared(metrics, health):
                self._pages.append(HealthPage(place_of(health, "--health"), "--health"))
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _is_shared(metrics: str | None, health: str) -> bool:
        place = place_of(health, "--health")
        return metrics is not None and place == place_of(metrics, "--metrics") and place[1] > 0

    def begin(self, make: Callable[[], Vitals], read: Callable[[], Read]) -> None:
        """Answer from now on, if a place was given.

        Args:
            make: Makes the vitals: live and ready.
            read: Makes the reader of metrics, if these are asked for.
        """
        if not self._pages and self._file is None and self._tell is None:
            return
        vitals = make()
        if self._metrics is not None:
            from shardq.metrics.exporter import page_of

            self._metrics.routes["/metrics"] = page_of(read())
        for page in self._pages:
            page.add_vitals(vitals)
            page.start()
            shown = "/metrics" if page is self._metrics else "/livez and /readyz"
            streams.note(f"answers {shown} at {page.url}.")
        if self._file is not None or self._tell is not None:
            self._beat = Beat(vitals, file=self._file, tell=self._tell)
            self._beat.start()

    def close(self) -> None:
        """Stop answering. Idempotent."""
        if self._beat is not None:
            self._beat.close()
        for page in self._pages:
            page.close()


def of_one(db: Connection, names: Sequence[str] | None = None) -> Callable[[], Read]:
    """A function that makes the reader of metrics for a process without a supervisor."""

    def read() -> Read:
        from shardq.metrics.collector import reader

        return reader(db, names)

    return read


def answer(
    line: ProcessLine, vitals: Callable[[], Vitals], db: Connection, *, has_metrics: bool
) -> None:
    """Let a process answer the questions of its supervisor.

    Args:
        line: Its line to the supervisor.
        vitals: Makes its vitals, on the first question.
        db: Its store.
        has_metrics: True if metrics are asked for.
    """
    vitals = cache(vitals)
    line.answer_by(lines.LIVE, lambda: vitals().live())
    line.answer_by(lines.READY_NOW, lambda: vitals().ready())
    if has_metrics:
        from shardq.metrics.reading import Process, Reading

        process, reading = Process(db), Reading(db)
        line.answer_by(lines.COUNTS, lambda: (process.counted(), process.gauges()))
        line.answer_by(lines.STORE, reading.gauges)
