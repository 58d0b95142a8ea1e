"""Reads that nodes refused because of too many tombstones, by the logs of consumers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from shardq.engine.leases.lease import TTL_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

_LINE = re.compile(
    r"^(?P<at>\S+ \S+) shardq\.(?:"
    r"\S+\.lanes .*reading lanes \[(?P<lanes>.*)\]"
    r"|\S+\.rows (?P<refused>.+) of queue \S+ refused"
    r"|.*(?P<failed>trying again)|)"
)
_LEASE = timedelta(milliseconds=TTL_MS)
_OF_WHAT_IS_NEW = {"poll", "catch-up", "ahead"}


@dataclass(slots=True)
class Refusals:
    """The refused reads that consumers logged.

    Attributes:
        counts: Purpose -> refused reads.
        polls: Polls and looks ahead that were refused though no lane had changed its reader for the
            time of a lease. After a change, a new reader meets tombstones of the former one.
        calm_s: How long, up to the last log line and after such a time, lanes kept their readers.
        failed: Steps that failed.
    """

    counts: Counter[str] = field(default_factory=Counter)
    polls: list[str] = field(default_factory=list)
    calm_s: float = 0.0
    failed: list[str] = field(default_factory=list)


def refusals(logs: Iterable[str]) -> Refusals:
    """Read the logs of all consumers of a queue."""
    lines = [
        (datetime.fromisoformat(found["at"]), reader, line, found)
        for reader, log in enumerate(logs)
        for line in log.splitlines()
        if (found := _LINE.match(line))
    ]
    lines.sort(key=lambda one: one[0])
    told = Refusals()
    moved = None
    read: dict[int, list[str]] = {}
    for at, reader, line, found in lines:
        if found["lanes"] is not None:
            read[reader] = found["lanes"].split(", ")
        lanes = [lane for mine in read.values() for lane in mine if lane]
        if found["lanes"] is not None or len(lanes) > len(set(lanes)):
            moved = at
        if found["failed"]:
            told.failed.append(line)
        if purpose := found["refused"]:
            told.counts[purpose] += 1
            if purpose in _OF_WHAT_IS_NEW and (moved is None or at - moved > _LEASE):
                told.polls.append(line)
    if moved is not None:
        told.calm_s = (lines[-1][0] - moved - _LEASE).total_seconds()
    return told
