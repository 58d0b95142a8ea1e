"""A large store: 1,000,000 messages in 200 queues, a few of them very full; 10,000 dead, 1,000 schedules.

```
 full-0   full-1   full-2 .. full-4   small-000 .. small-194
 300,000  150,000  50,000 each        2,050 each: a tenth due, the others in the three days ahead
```
"""  # noqa: E501 - a drawing

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import shardq

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq.connection import Connection

FULL = (300_000, 150_000, 50_000, 50_000, 50_000)
SMALL, SMALL_COUNT = 195, 400_000
QUEUES = len(FULL) + SMALL
MESSAGES = sum(FULL) + SMALL_COUNT
DEAD, DEAD_FULL = 10_000, 5_000
"""Dead messages; half of them are those of the fullest queue."""
SCHEDULES = 1_000
_AHEAD_S = 3 * 86_400
_PAST_SHARE = 0.1
_KEYED = 200
_ERRORS = (
    (ConnectionError, "connection refused by db-{}.internal:5432"),
    (TimeoutError, "no answer within {} s"),
    (ValueError, "order {} has no address"),
    (KeyError, "customer-{}"),
)
_TASKS = ("mail.send", "invoice.make", "image.resize", "report.night")
_ZONES = ("UTC", "Europe/Berlin", "America/New_York")


@dataclass(frozen=True, slots=True)
class Large:
    """The contents of a large store.

    Attributes:
        queues: The names of its queues, the fullest first.
        dead: The id of a dead message of the fullest queue.
        near: The id of a message that is due next in a small queue.
        recorded: The id of a message due in days, in a queue with a history.
        far: The id of a message due in days, in the fullest queue, which has no history.
        key: A key of a message that is due in days.
        schedule: The name of a schedule of the fullest queue.
    """

    queues: list[str]
    dead: str
    near: str
    recorded: str
    far: str
    key: str
    schedule: str


def fill(db: Connection) -> Large:
    """Fill an empty store; takes two minutes on SQLite.

    Args:
        db: The store.
    """
    chance = random.Random(41)
    sizes = [(f"full-{number}", count) for number, count in enumerate(FULL)]
    each = [SMALL_COUNT // SMALL + (number < SMALL_COUNT % SMALL) for number in range(SMALL)]
    sizes += [(f"small-{number:03}", count) for number, count in enumerate(each)]
    queues = {
        name: db.queue(name, attempts=1, history="7d" if number % 2 else "off")
        for number, (name, _) in enumerate(sizes)
    }
    dead = _kill(queues, chance)
    for name, count in sizes:
        queues[name].put_many(_items(count, chance))
    names = list(queues)
    full, small, recorded = queues[names[0]], queues[names[-2]], queues[names[-1]]
    assert not small.settings.history_ms and recorded.settings.history_ms  # noqa: S101, PT018
    for number in range(_KEYED):
        # Put keyed messages into many queues of the store.
        queues[names[number]].put("keyed", key=f"order-{number}", delay="2d")
    for number in range(SCHEDULES):
        _schedule(queues[names[number % QUEUES]], f"plan-{number:03}", chance)
    return Large(
        names,
        dead,
        small.put("near", delay="10m").id,
        recorded.put("recorded", delay="50h").id,
        full.put("far", delay="50h").id,
        f"order-{_KEYED - 1}",
        "plan-000",
    )


def _kill(queues: dict[str, shardq.Queue], chance: random.Random) -> str:
    """Let messages die in otherwise empty queues; returns the id of one in the fullest queue."""
    names = list(queues)
    shares = {names[0]: DEAD_FULL, names[1]: DEAD_FULL // 2}
    shares |= dict.fromkeys(names[2:102], (DEAD - sum(shares.values())) // 100)
    killed = ""
    for name, count in shares.items():
        ids = queues[name].put_many(_dying(count, chance), ids=True)
        killed = killed or ids[count // 2]

    def die(message: shardq.Message) -> None:
        number = int(message.headers["number"])
        kind, text = _ERRORS[number % len(_ERRORS)]
        raise kind(text.format(number % 40))

    consumers = [shardq.Consumer(queues[name], die, threads=2) for name in shares]
    # Disable logs, because each failure is logged with its traceback.
    logging.disable()
    try:
        shardq.run(*consumers, until_empty=True)
    finally:
        logging.disable(logging.NOTSET)
    return killed


def _dying(count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "body": f'{{"order": {number}, "to": "ada@example.com"}}',
            "headers": {"number": str(number), "task": chance.choice(_TASKS)},
        }


def _items(count: int, chance: random.Random) -> Iterator[dict[str, Any]]:
    for number in range(count):
        item: dict[str, Any] = {"body": f'{{"order": {number}, "to": "ada@example.com"}}'}
        if chance.random() > _PAST_SHARE:
            item["delay"] = f"{chance.randrange(1, _AHEAD_S)}s"
        if not number % 4:
            item["headers"] = {"task": chance.choice(_TASKS)}
        yield item


def _schedule(queue: shardq.Queue, name: str, chance: random.Random) -> None:
    if chance.random() < 1 / 3:
        queue.every(f"{chance.choice((1, 5, 15, 60))}m", "x", name=name)
    else:
        time = f"{chance.randrange(60)} {chance.randrange(24)}"
        queue.cron(f"{time} * * *", "x", name=name, tz=chance.choice(_ZONES))
