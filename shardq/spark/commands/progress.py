"""How far a run is, by the lines that its pieces have in the ledger."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING

from shardq.cli import screen
from shardq.errors import StoreError
from shardq.spark.pieces import PiecesDone
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
        done = PiecesDone(queue.place().store, queue.name, Run.read(run), len(bins), before)
        ended = Event()
        asking = Thread(target=_ask, args=(done, ended, lambda n: bar.update(task, completed=n)))
        asking.start()
        try:
            yield
        finally:
            ended.set()
            asking.join()


def _ask(done: PiecesDone, ended: Event, tell: Callable[[int], None]) -> None:
    while not ended.wait(_PAUSE_S):
        try:
            tally = done.tally()
            tell(tally.rows + tally.cancelled)
        except StoreError as error:
            # The run itself goes on, or tells of it.
            log.info("the progress of a run cannot be read: %s", error)
