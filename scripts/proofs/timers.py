"""A million timers wait; a consumer that starts meanwhile is small, and ready at once."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import shardq
from proofs.producer import put
from proofs.promise import Promise
from shardq.clock import machine_us
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from proofs.judge import HandOut
    from proofs.stage import Stage

_TIMERS = (1_000_000, 3_000_000)
_HOUR_MS = 3_600_000
_YEAR_MS = 365 * 86_400_000
_SEED = 1
_WATCHED_S = (15, 60)
_READY_S = 3
_PEAK_BYTES = 100_000_000


def play(stage: Stage) -> list[Promise]:
    """Put the timers, start a consumer, and watch it for a while."""
    count = _TIMERS[stage.long]
    with shardq.connect(stage.url) as db:
        queue = db.queue("timers")
        started_us = stage.clock.boot_us()
        put(queue, _timers(count, machine_us() // 1_000))
        put_s = (stage.clock.boot_us() - started_us) / 1e6
        first = queue.put("first").id
        consumer = stage.consume(queue.name)
        delivered = stage.wait(lambda: "first" in stage.handed_out())
        for number in range(_WATCHED_S[stage.long]):
            stage.sleep(1)
            queue.put(f"later-{number}")
        stage.sleep(1)
        stage.stop(consumer)
        hand_outs = stage.hand_outs()
    mine = [one for one in hand_outs if one.id == first]
    life = consumer.life()
    return [
        Promise("timers", "put", f"{count:,} timers over a year, {count / put_s:,.0f}/s"),
        _ready(mine if delivered else [], consumer.started_us, life),
        Promise(
            "timers",
            "small",
            f"at most {life['peak_bytes'] / 1e6:.1f} MB in {_WATCHED_S[stage.long]} s "
            f"(less than {_PEAK_BYTES / 1e6:.0f})",
            life["peak_bytes"] < _PEAK_BYTES,
        ),
        _served(hand_outs, _WATCHED_S[stage.long]),
    ]


def _timers(count: int, now_ms: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(_SEED)
    for number in range(count):
        # Each is due after the end of the proof.
        due_ms = now_ms + _HOUR_MS + chance.randrange(_YEAR_MS)
        yield {"body": f"timer-{number}", "due": moment_of(due_ms)}


def _ready(first: list[HandOut], started_us: int, life: dict[str, int]) -> Promise:
    if not first:
        return Promise("timers", "ready", "what was put before never came", kept=False)
    seconds = (first[0].began_us - started_us) / 1e6
    imported_s = (life["main_us"] - started_us) / 1e6
    connected_s = (life["connected_us"] - started_us) / 1e6
    return Promise(
        "timers",
        "ready",
        f"first delivery {seconds:.2f} s after the process was started (less than {_READY_S}); "
        f"Python and imports took {imported_s:.2f}, until connected {connected_s:.2f}",
        seconds < _READY_S,
    )


def _served(hand_outs: list[HandOut], put_meanwhile: int) -> Promise:
    later = [one for one in hand_outs if one.body.startswith("later-")]
    timers = sum(one.body.startswith("timer-") for one in hand_outs)
    worst_ms = max((one.began_us / 1_000 - one.due_ms for one in later), default=0.0)
    return Promise(
        "timers",
        "served beside them",
        f"{len(later)} of {put_meanwhile} put meanwhile, at most {worst_ms:.0f} ms late; "
        f"{timers} timers early",
        len({one.body for one in later}) == put_meanwhile and not timers,
    )
