"""Messages became due while no consumer ran; then they are delivered in due order, at full speed.

The queue's minute is a second long, so that 20 of its minutes and the offset pass in 25 s of real
time; no clock is shifted.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import shardq
from proofs import judge
from proofs.producer import put
from proofs.promise import Promise
from shardq.clock import machine_us
from shardq.model.times import moment_of

if TYPE_CHECKING:
    from proofs.stage import Stage

_MINUTES = (20, 60)
_MINUTE_MS = 1_000
_A_MINUTE = (1_000, 5_000)
_THREADS = (1, 8)
_LEAD_MS = 3_000
_OFFSET_MS = 2_000
_SEED = 1


def play(stage: Stage) -> list[Promise]:
    """Let two queues fill, then drain one with a thread and one with eight."""
    minutes = _MINUTES[stage.long]
    with shardq.connect(stage.url) as db:
        queues = [
            db.queue(f"catchup-{threads}", minute=f"{_MINUTE_MS}ms", offset=f"{_OFFSET_MS}ms")
            for threads in _THREADS
        ]
        puts = [_fill(queue, minutes, _A_MINUTE[stage.long]) for queue in queues]
        last_ms = max(one.due_ms for some in puts for one in some)
        while (left_ms := last_ms + _OFFSET_MS + _MINUTE_MS - machine_us() // 1_000) > 0:
            stage.sleep(left_ms / 1_000)
        promises = []
        for threads, queue, some in zip(_THREADS, queues, puts, strict=True):
            promises += _drain(stage, queue, some, threads, minutes)
    return promises


def _fill(queue: shardq.Queue, minutes: int, a_minute: int) -> list[judge.Put]:
    """Messages spread over the coming minutes, put in random order."""
    chance = random.Random(_SEED)
    start_ms = machine_us() // 1_000 + _LEAD_MS
    due_ms = [start_ms + chance.randrange(minutes * _MINUTE_MS) for _ in range(minutes * a_minute)]
    began_us = machine_us()
    items: list[dict[str, Any]] = [
        {"body": f"{queue.name}-{number}", "due": moment_of(due)}
        for number, due in enumerate(due_ms)
    ]
    put(queue, items)
    acked_us = machine_us()
    return [
        judge.Put(item["body"], due, began_us, acked_us)
        for item, due in zip(items, due_ms, strict=True)
    ]


def _drain(
    stage: Stage, queue: shardq.Queue, puts: list[judge.Put], threads: int, minutes: int
) -> list[Promise]:
    name = f"{threads} thread{'s' * (threads > 1)}"
    consumer = stage.consume(queue.name, threads=threads)
    wanted = {one.body for one in puts}
    stage.wait(lambda: wanted <= stage.handed_out())
    stage.finish(queue)
    hand_outs = judge.read_hand_outs([consumer.out])
    verdict = judge.whole(puts, hand_outs)
    disorder = judge.disorder(hand_outs)
    begun = [one.began_us for one in hand_outs] or [0]
    seconds = max((max(begun) - min(begun)) / 1e6, 1e-6)
    started_s = (min(begun) - consumer.started_us) / 1e6
    return [
        Promise(
            "catchup",
            f"each once, {name}",
            f"{verdict.delivered:,} of {verdict.put:,}, lost {len(verdict.lost)}, "
            f"twice {verdict.repeats}, early {len(verdict.early)}",
            not (verdict.lost or verdict.repeats or verdict.early or verdict.foreign),
        ),
        Promise(
            "catchup",
            f"in due order, {name}",
            f"{disorder.count:,} after one of a later due, at most {disorder.worst_ms} ms of due",
            not disorder.count if threads == 1 else None,
        ),
        Promise(
            "catchup",
            f"at full speed, {name}",
            f"{len(hand_outs) / seconds:,.0f}/s: {minutes} minutes of {_MINUTE_MS} ms in "
            f"{seconds:.1f} s, from {started_s:.1f} s after the process was started",
        ),
    ]
