"""Connecting to a queue from Spark, and a method for each job on it.

What a job does, and what its arguments mean, is in `jobs/`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from shardq.connection import store_url
from shardq.model import names
from shardq.spark.options import FROM_ENVIRONMENT, refuse_store
from shardq.spark.queue import SparkQueue
from shardq.spark.source import register

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from shardq.model.times import Due, Duration
    from shardq.spark.jobs.archive import ArchiveReport
    from shardq.spark.jobs.audit import AuditReport
    from shardq.spark.jobs.backlog import BacklogReport
    from shardq.spark.jobs.dead import DeadReport, DeadTable
    from shardq.spark.jobs.history import HistoryReport
    from shardq.spark.jobs.schedule import Plan


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
        key: str | Column,
        due: str | Column,
        body: str | Column | None = None,
        priority: str | Column | int | None = None,
        group: str | Column | None = None,
        headers: str | Column | None = None,
        spread: Duration | None = None,
        rate: float | None = None,
        as_of: Due | None = None,
        run: str | None = None,
        create: bool = False,
    ) -> Plan:
        """A plan that puts each row of a frame as a message due at its own time.

        Nothing is put before `run()` of the plan; `good`, `bad` and `preview()` tell what would be.
        `shardq.spark.jobs.schedule.plan` explains the arguments.
        """
        from shardq.spark.jobs import schedule

        return schedule.plan(
            self,
            frame,
            key=key,
            due=due,
            body=body,
            priority=priority,
            group=group,
            headers=headers,
            spread=spread,
            rate=rate,
            as_of=as_of,
            run=run,
            create=create,
        )

    def unschedule(
        self,
        frame: DataFrame,
        *,
        key: str | Column,
        due: str | Column,
        body: str | Column | None = None,
        priority: str | Column | int | None = None,
        group: str | Column | None = None,
        headers: str | Column | None = None,
        spread: Duration | None = None,
        rate: float | None = None,
        as_of: Due | None = None,
        run: str | None = None,
    ) -> Plan:
        """A plan that takes back what a schedule of the same frame has put, and nothing else.

        It takes the arguments of that schedule, and its run or its time.
        """
        from shardq.spark.jobs import unschedule

        return unschedule.plan(
            self,
            frame,
            key=key,
            due=due,
            body=body,
            priority=priority,
            group=group,
            headers=headers,
            spread=spread,
            rate=rate,
            as_of=as_of,
            run=run,
        )

    def backlog(self, *, ahead: Duration | None = None, rate: float | None = None) -> BacklogReport:
        """What waits, by minute, priority and lane, and when it will be done."""
        from shardq.spark.jobs import backlog

        return backlog.run(self, ahead=ahead, rate=rate)

    def audit(
        self,
        *,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
        expected: DataFrame | None = None,
        key: str = "id",
    ) -> AuditReport:
        """Whether each message put has ended or is there, and none is twice."""
        from shardq.spark.jobs import audit

        return audit.run(self, since=since, until=until, expected=expected, key=key)

    def dead(self, *, where: str | Column | None = None) -> DeadTable:
        """Dead messages, grouped by error."""
        from shardq.spark.jobs import dead

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
        """Put dead messages back, each under its id and once.

        They come due at the rate, 2,000 a second where none is given. A `frame` of the view `dead`
        chooses them by whatever conditions.
        """
        from shardq.spark.jobs import dead

        return dead.redrive(self, where=where, frame=frame, rate=rate, run=run, dry_run=dry_run)

    def purge(
        self,
        *,
        where: str | Column | None = None,
        frame: DataFrame | None = None,
        run: str | None = None,
        dry_run: bool = False,
    ) -> DeadReport:
        """Delete dead messages."""
        from shardq.spark.jobs import dead

        return dead.purge(self, where=where, frame=frame, run=run, dry_run=dry_run)

    def history(
        self,
        *,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
        by: Literal["entered", "due", "ended"] = "entered",
    ) -> HistoryReport:
        """How late the messages of each day were, and how they ended."""
        from shardq.spark.jobs import history

        return history.run(self, since=since, until=until, by=by)

    def archive(
        self,
        path: str,
        *,
        since: Due | Duration | None = None,
        until: Due | Duration | None = None,
    ) -> ArchiveReport:
        """Copy the history to Parquet, a directory for each day that is over; verified."""
        from shardq.spark.jobs import archive

        return archive.run(self, path, since=since, until=until)
