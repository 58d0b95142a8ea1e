"""How far a run is, by the lines that its pieces have in the ledger."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from shardq.cli import screen
from shardq.errors import StoreError
from shardq.spark import runs
from shardq.spark.runs import Run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from shardq.spark.queue import SparkQueue

log = logging.getLogger(__name__)

_PAUSE_S = 1.0


@contextmanager
def watched(
    what: str, queue: SparkQueue, run: str, bins: Sequence[int], *, before: str = ""
) -> Iterator[None]:
    """While this lasts, a bar on stderr shows the rows that are done, where that is a terminal.

    Spark tells of its tasks in a way that Spark Connect has not; the ledger tells of rows.

    Args:
        what: What the bar is called.
        queue: Whose run it is.
        run: The run's name.
        bins: The rows of each bin, as the run's preview has them.
        before: What the name of a piece begins with.
    """
    with screen.progress() as bar:
        task = bar.add_task(what, total=sum(bins))
        if bar.disable:
            yield
            return
        pieces = Pieces(queue, Run.read(run), len(bins), before)
        ended = Event()
        asking = Thread(target=_ask, args=(pieces, ended, lambda n: bar.update(task, completed=n)))
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()


def _ask(pieces: Pieces, ended: Event, tell: Callable[[int], None]) -> None:
    while not ended.wait(_PAUSE_S):
        try:
            tell(pieces.rows())
        except StoreError as error:
            # The run itself goes on, or tells of it.
            log.info("the progress of a run cannot be read: %s", error)


class Pieces:
    """The pieces of a run that are done: of each bin the first ones, in order.

    Args:
        queue: The run's.
        run: The run.
        bins: How many bins it has.
        before: What the name of a piece begins with.
    """

    def __init__(self, queue: SparkQueue, run: Run, bins: int, before: str = "") -> None:
        self._store = queue.place().store
        self._queue, self._run, self._before = queue.name, run, before
        self._next = dict.fromkeys(range(bins), 0)
        self._rows = 0

    def rows(self) -> int:
        """The rows of all pieces that are done; reads on from those that were when last asked."""
        going = dict(self._next)
        while going:
            entries = {
                self._run.entry(self._queue, f"{self._before}{number}/{piece}"): number
                for number, piece in going.items()
            }
            found = runs.lines(self._store, entries)
            going = {}
            for entry, line in found.items():
                if line.says is not None:
                    number = entries[entry]
                    self._next[number] += 1
                    going[number] = self._next[number]
                    self._rows += line.says.get("rows", 0) + line.says.get("cancelled", 0)
        return self._rows
