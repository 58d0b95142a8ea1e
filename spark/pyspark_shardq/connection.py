"""Connecting to a queue from Spark, and a method for each job on it.

What a job does, and what its arguments mean, is in `jobs/`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Unpack

from pyspark_shardq.asked import FrameColumns
from pyspark_shardq.jobs import archive, audit, backlog, dead, history, schedule
from pyspark_shardq.options import DELETE, FROM_ENVIRONMENT, REDRIVE, UNDO, refuse_store
from pyspark_shardq.queues import SparkQueue
from pyspark_shardq.source import register
from shardq.connection import store_url
from shardq.model import names

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from pyspark_shardq.asked import ColumnNames
    from pyspark_shardq.jobs.archive import ArchiveReport
    from pyspark_shardq.jobs.audit import AuditReport
    from pyspark_shardq.jobs.backlog import BacklogReport
    from pyspark_shardq.jobs.dead import DeadReport, DeadTable
    from pyspark_shardq.jobs.history import By, HistoryReport
    from pyspark_shardq.jobs.schedule import Plan
    from shardq.model.times import Due, Duration


def connect(spark: SparkSession, queue: str, store: str | None = None) -> QueueJobs:
    """A queue in Spark, and the jobs on it. Opens nothing: its store is opened when it is used.

    Args:
        spark: The session; the data source is registered with it.
        queue: Its name.
        store: The url of its store, or `env:NAME` where each process of Spark finds the url in its
            environment, so that no password travels; None: the url in `SHARDQ_STORE` here.

    Raises:
        BadName: If the name cannot be used.
        BadUrl: If no store is named, or one that Spark's processes cannot share.
    """
    names.queue_name(queue)
    url = _everywhere(store_url(store))
    if not url.startswith(FROM_ENVIRONMENT):
        # Before this process makes a file that no executor sees.
        refuse_store(url, spark.conf.get("spark.master", None))
    register(spark)
    return QueueJobs(spark, queue, url)


def _everywhere(url: str) -> str:
    """A url that means the same in every process of this machine, whatever its directory is."""
    if not url.startswith("sqlite:"):
        return url
    from shardq.stores.sqlite.address import read_url
    from shardq.stores.url import printable

    path, _ = read_url(url)
    if path is None or path.is_absolute():
        return url
    _, mark, options = url.partition("?")
    return f"sqlite:///{printable(os.path.abspath(path))}{mark}{options}"


@dataclass(frozen=True, slots=True)
class QueueJobs(SparkQueue):
    """A queue in Spark, with its jobs. Made by `connect`."""

    def schedule(
        self,
        frame: DataFrame,
        *,
        rate: float | None = None,
        as_of: Due | None = None,
        run: str | None = None,
        create: bool = False,
        bins: int | None = None,
        **columns: Unpack[ColumnNames],
    ) -> Plan:
        """A plan that puts each row of a frame as a message due at its own time.

        Nothing is put before `run()` of the plan; `good`, `bad` and `preview()` show what would be.

        Args:
            frame: Each row is a message. It is read twice, and has to give the same rows again.
            rate: Most rows a second; None: as fast as it goes.
            as_of: The run's time, where the run is to be named by it; dues before it are past.
            run: A run that was begun, to be resumed with the same frame and arguments.
            create: True to make the queue where there is none.
            bins: How many tasks write; None: two for each that runs at a time, fewer for few rows.
            columns: Which columns of the frame make a message; each is a column or its name.
                `key` and `due` have to be given.

                - `key`: the message's id: text, 1 to 256 printable characters, or a number. Rows of
                  one key and due, and of one priority and group, are one message.
                - `due`: a TIMESTAMP, or a text with an offset, `2027-01-01T09:00:00+01:00`.
                - `body`: bytes, text or a value that becomes JSON, at most 1 MiB. Without it, the
                  row as JSON.
                - `priority`: whole numbers, or one number for all rows. Without it, 0.
                - `group`: text or a number; null: no group.
                - `headers`: a map of texts, or a struct, the fields of which are headers where not
                  null.
                - `spread`: no column, but a duration: equal dues are spread over it. A row is later
                  by a part of it that follows from its key.

        Raises:
            UsageError: If a column is missing or of a wrong type, or a setting cannot be used.
            UnknownQueue: If there is no such queue.
            StoreError: If the store cannot be reached.
        """
        asked = FrameColumns.of(frame, **columns)
        return schedule.plan(
            self, frame, asked, rate=rate, as_of=as_of, run=run, create=create, bins=bins
        )

    def unschedule(
        self,
        frame: DataFrame,
        *,
        rate: float | None = None,
        as_of: Due | None = None,
        run: str | None = None,
        **columns: Unpack[ColumnNames],
    ) -> Plan:
        """A plan that takes back what a schedule of the same frame has put, and nothing else.

        It takes the arguments of that schedule, and its run or its time. A message that is being
        delivered just now is taken back as by a cancel: as well as it goes.
        """
        asked = FrameColumns.of(frame, **columns)
        return schedule.plan(self, frame, asked, act=UNDO, rate=rate, as_of=as_of, run=run)

    def backlog(self, *, ahead: Duration | None = None, rate: float | None = None) -> BacklogReport:
        """Count waiting messages by minute, priority and lane, and predict when all are done."""
        return backlog.run(self, ahead=ahead, rate=rate)

    def audit(
        self,
        *,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
        expected: DataFrame | None = None,
        key: str = "id",
    ) -> AuditReport:
        """Check that each message that was put has ended or is stored, and none twice."""
        return audit.run(self, since=since, until=until, expected=expected, key=key)

    def dead(self, *, where: str | Column | None = None) -> DeadTable:
        """Group dead messages by error."""
        return dead.table(self, where=where)

    def redrive(
        self,
        *,
        where: str | Column | None = None,
        frame: DataFrame | None = None,
        rate: float | None = None,
        run: str | None = None,
        dry_run: bool = False,
    ) -> DeadReport:
        """Put dead messages back, each once, under their ids and with all attempts again.

        They are moved at once, as fast as it goes, and come due at the rate, in no order, from 5 s
        after the count on. Tasks that fail are tried again, twins of one run share it, and a run
        that was killed is resumed by its name: each message is put back once, and is due at once
        where its time was before. Two runs at a time may put back what the other has just read, as
        `Queue.redrive` may.

        Args:
            where: Which of them, by the columns of the view `dead`; None: all.
            frame: Which of them instead: a DataFrame made of that view, by whatever conditions.
            rate: Messages a second that come due; None: 2,000.
            run: The name of a run to resume, or to take part in; None begins one.
            dry_run: True to count alone.

        Raises:
            UsageError: If the condition cannot be used, the run was of another job, or the queue
                was purged since it began.
            ShardqError: If the queue or the store is not there or fails. What was put back stays;
                the run can be resumed.
        """
        return dead.act_on(
            self, REDRIVE, where=where, frame=frame, rate=rate, run=run, dry_run=dry_run
        )

    def purge(
        self,
        *,
        where: str | Column | None = None,
        frame: DataFrame | None = None,
        run: str | None = None,
        dry_run: bool = False,
    ) -> DeadReport:
        """Delete dead messages, each once; totals and history count them as cancelled.

        Its arguments are those of `redrive`. What was deleted stays so, should it fail.
        """
        return dead.act_on(self, DELETE, where=where, frame=frame, run=run, dry_run=dry_run)

    def history(
        self,
        *,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
        by: By = "entered",
    ) -> HistoryReport:
        """Report how late the messages of each day were, and how they ended."""
        return history.run(self, since=since, until=until, by=by)

    def archive(
        self,
        path: str,
        *,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
    ) -> ArchiveReport:
        """Copy the history to Parquet, a directory for each day that is over; verified."""
        return archive.plan(self, path, since=since, until=until).run()
