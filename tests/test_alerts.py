"""The alert rules: each fires in a play made for it, and in no other.

```
 play, staged clock ── a scrape each 30 s ──► Samples ──► firing ──► the alerts that fired
```
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from prometheus_client import CollectorRegistry
from promql import Samples, firing

import shardq
from shardq.metrics import Collector
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Callable

    from promql import Vector

ROOT = Path(__file__).parent.parent
RULES = ROOT / "data" / "alerts.yml"
STEP_S = 30
NAMED = frozenset(re.findall(r"\bshardq_\w+", RULES.read_text()))
TARGET = {("instance", "one:9324"), ("job", "shardq")}
FOR_MOMENTS = ("_timestamp_seconds",)
"""Metrics of this end are times: in samples they count from the first scrape, as `time()` does."""


class Play:
    """A stage whose store and one process are scraped every 30 s.

    Attributes:
        stage: The stage.
        db: The connection that is scraped.
        samples: The scrapes.
    """

    def __init__(self, stage: Stage, *, shift: float = 0) -> None:
        self.stage = stage
        self.db = stage.connect(shift=shift)
        self.samples = Samples(STEP_S)
        self._registry = CollectorRegistry()
        self._registry.register(Collector(self.db))
        self._begun_us = stage.clock.true_us()

    def scrape(self) -> None:
        scrape: dict[str, Vector] = {}
        for family in self._registry.collect():
            for one in family.samples:
                if one.name in NAMED:
                    is_time = one.name.endswith(FOR_MOMENTS)
                    labels = frozenset({*one.labels.items(), *TARGET})
                    of = scrape.setdefault(one.name, {})
                    of[labels] = one.value - is_time * self._begun_us / 1e6
        self.samples.scrapes.append(scrape)

    def go_on(
        self,
        minutes: float,
        *consumers: shardq.Consumer,
        before: Callable[[int], object] = lambda _: None,
    ) -> None:
        """Let time pass.

        Args:
            minutes: How long.
            consumers: Who works meanwhile.
            before: Called before each step of 30 s with the number of the step.
        """
        for step in range(round(minutes * 60 / STEP_S)):
            before(step)
            self.scrape()
            self.stage.drive(*consumers, seconds=STEP_S, stride=1)

    @property
    def fired(self) -> set[str]:
        """The alerts that have fired."""
        return set().union(*firing(rules(), self.samples))


def rules() -> list[dict[str, str]]:
    written = yaml.safe_load(RULES.read_text())
    return [one for group in written["groups"] for one in group["rules"]]


PLAYS: dict[str, Callable[[Stage], Play]] = {}
"""Alert -> the play made for it; `nothing` -> a play in which none is to fire."""


def play_of(alert: str) -> Callable[[Callable[[Stage], Play]], Callable[[Stage], Play]]:
    def keep(play: Callable[[Stage], Play]) -> Callable[[Stage], Play]:
        PLAYS[alert] = play
        return play

    return keep


def done(_message: shardq.Message) -> None:
    pass


@play_of("nothing")
def healthy(stage: Stage) -> Play:
    """A queue at work where one run in forty fails once, a paused one, a schedule, timers."""
    play = Play(stage)
    mail, later = play.db.queue("mail", backoff="10s"), play.db.queue("later")
    mail.every("1m", "digest", name="digest")
    later.put("x")
    later.put("y", delay="20m")
    later.pause()

    def work(message: shardq.Message) -> None:
        if message.text == "39" and message.attempt == 1:
            raise ConnectionError

    consumer = shardq.Consumer(mail, work)
    play.go_on(
        30, consumer, before=lambda step: mail.put_many([f"{8 * step % 40 + n}" for n in range(8)])
    )
    assert mail.totals().retried >= 10
    return play


@play_of("ShardqStoreAway")
def store_away(stage: Stage) -> Play:
    play = Play(stage)
    mail = play.db.queue("mail")
    consumer = shardq.Consumer(mail, done)
    play.go_on(5, consumer, before=lambda _: mail.put("x"))
    stage.faults.fail("notes queues", times=1_000_000)
    play.go_on(10, consumer)
    stage.faults.heal()
    play.go_on(15, consumer, before=lambda _: mail.put("x"))
    return play


@play_of("ShardqOldestDue")
def late(stage: Stage) -> Play:
    """More is put than its only worker can do: a run takes 5 s."""
    play = Play(stage)
    mail = play.db.queue("mail")
    consumer = shardq.Consumer(mail, lambda _: stage.clock.advance(5), threads=1)
    mail.put_many(["x"] * 300)
    play.go_on(15, consumer)
    return play


@play_of("ShardqHeldBack")
def held_back(stage: Stage) -> Play:
    """A rate lets one message begin in an hour, and a group is paused in another queue."""
    play = Play(stage)
    slow, paused = play.db.queue("slow", limits={"rate": "1/h"}), play.db.queue("paused")
    slow.put_many(["x"] * 3)
    paused.put("x", group="a")
    paused.pause(group="a")
    consumers = [shardq.Consumer(queue, done) for queue in (slow, paused)]
    play.go_on(70, *consumers)
    return play


@play_of("ShardqNoWorker")
def no_worker(stage: Stage) -> Play:
    play = Play(stage)
    mail = play.db.queue("mail")
    mail.put("x")
    play.go_on(20)
    return play


@play_of("ShardqDeadGrow")
def deaths(stage: Stage) -> Play:
    play = Play(stage)
    mail = play.db.queue("mail", attempts=1)
    consumer = shardq.Consumer(mail, lambda one: 1 / 0 if one.text == "bad" else None)
    play.go_on(
        20, consumer, before=lambda step: mail.put_many(["x", "x", "bad" if step == 10 else "x"])
    )
    assert mail.totals().buried == 1
    return play


@play_of("ShardqFailures")
def failures(stage: Stage) -> Play:
    """One message in five fails once."""
    play = Play(stage)
    mail = play.db.queue("mail", backoff="1s")

    def work(message: shardq.Message) -> None:
        if message.text == "bad" and message.attempt == 1:
            raise ConnectionError

    consumer = shardq.Consumer(mail, work)
    play.go_on(20, consumer, before=lambda _: mail.put_many([*"xxxxxxxx", "bad", "bad"]))
    return play


@play_of("ShardqRetryStorm")
def storm(stage: Stage) -> Play:
    """What most messages need is away: they are retried each 20 s, and one in some is done."""
    play = Play(stage)
    mail = play.db.queue("mail", attempts=1_000, backoff="20s", backoff_max="20s")

    def work(message: shardq.Message) -> None:
        if message.text == "bad":
            raise ConnectionError

    consumer = shardq.Consumer(mail, work)
    mail.put_many(["bad"] * 5)
    play.go_on(25, consumer, before=lambda step: None if step % 4 else mail.put("x"))
    return play


@play_of("ShardqScheduleOverdue")
def overdue(stage: Stage) -> Play:
    """Nobody fires the schedule, and nothing is due."""
    play = Play(stage)
    play.db.queue("mail").every("1m", "digest", name="digest")
    play.go_on(15)
    return play


@play_of("ShardqClock")
def wrong_clock(stage: Stage) -> Play:
    play = Play(stage, shift=70)
    mail = play.db.queue("mail")
    consumer = shardq.Consumer(mail, done)
    play.go_on(15, consumer, before=lambda _: mail.put("x"))
    return play


@play_of("ShardqStoreErrors")
def store_errors(stage: Stage) -> Play:
    """Each put fails once, and is repeated."""
    play = Play(stage)
    mail = play.db.queue("mail")
    consumer = shardq.Consumer(mail, done)

    def put(_step: int) -> None:
        stage.faults.fail("insert")
        with pytest.raises(shardq.StoreUnavailable):
            mail.put("x")
        mail.put("x")

    play.go_on(15, consumer, before=put)
    return play


@pytest.mark.parametrize("alert", PLAYS)
def test_an_alert_fires_in_the_play_made_for_it_and_in_no_other(stage: Stage, alert: str) -> None:
    assert PLAYS[alert](stage).fired == {alert} - {"nothing"}


def test_each_alert_has_a_play() -> None:
    assert {one["alert"] for one in rules()} == PLAYS.keys() - {"nothing"}
