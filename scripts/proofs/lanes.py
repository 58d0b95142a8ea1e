"""Lanes are added and removed under a load that has groups and three priorities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shardq
from proofs import judge
from proofs.producer import put
from proofs.promise import Promise
from shardq.clock import machine_us

if TYPE_CHECKING:
    from proofs.stage import Stage

_BANDS = 3
_RATE = 500
_SECONDS = (30, 120)
_LANES = (2, 8, 3)
_GROUPS = 25
"""Groups of each producer: as many as a call puts messages, so that each gets one every 0.1 s."""
_DELAYS_MS = (0, 2_000)
_WORK_MS = 2
_BACKLOG = (3_000, 30_000)


def play(stage: Stage) -> list[Promise]:
    """Alter the lanes under load; then deliver a backlog of all priorities with one thread."""
    return [*_load(stage), *_backlog(stage)]


def _load(stage: Stage) -> list[Promise]:
    seconds = _SECONDS[stage.long]
    with shardq.connect(stage.url) as db:
        # Shorten the minute, so that a short run has several minutes and seals.
        queue = db.queue("lanes", lanes=_LANES[0], bands=_BANDS, minute="10s", offset="10s")
        for _ in range(3):
            stage.consume(queue.name, work_ms=_WORK_MS)
        for _ in range(2):
            stage.produce(
                queue.name,
                rate=_RATE,
                seconds=seconds,
                delays_ms=_DELAYS_MS,
                groups=_GROUPS,
                bands=_BANDS,
            )
        for lanes in _LANES[1:]:
            stage.sleep(seconds / len(_LANES))
            queue.alter(lanes=lanes)
        puts = stage.wait_for_producers()
        wanted = {one.body for one in puts}
        stage.wait(lambda: wanted <= stage.handed_out())
        hand_outs = stage.finish(queue)
    verdict = judge.whole(puts, hand_outs)
    rate = len(puts) * 1e6 / (puts[-1].acked_us - min(one.began_us for one in puts))
    return [
        Promise(
            "lanes",
            "each once",
            f"{verdict.delivered:,} of {verdict.put:,} at {rate:,.0f}/s, lost "
            f"{len(verdict.lost)}, twice {verdict.repeats}, early {len(verdict.early)}; "
            f"lateness p50 {verdict.late_ms(0.5):.0f}, p99 {verdict.late_ms(0.99):.0f} ms",
            not (verdict.lost or verdict.repeats or verdict.early or verdict.foreign),
        ),
        *(_groups(puts, hand_outs, delay_ms) for delay_ms in _DELAYS_MS),
        _priorities(puts, hand_outs),
    ]


def _groups(puts: list[judge.Put], hand_outs: list[judge.HandOut], delay_ms: int) -> Promise:
    kind = f"-in-{delay_ms}"
    faults = judge.group_faults(
        [one for one in puts if one.group is not None and one.group.endswith(kind)],
        hand_outs,
        late_us=judge.SLACK_MS * 1_000,
    )
    worst_ms = max(
        ((second.began_us - first.began_us) / 1_000 for first, second in faults.disordered),
        default=0.0,
    )
    return Promise(
        "lanes",
        "groups due at once" if not delay_ms else f"groups due in {delay_ms} ms",
        f"{faults.messages:,} messages of {faults.groups} groups: {len(faults.disordered)} out of "
        f"order (at most {worst_ms:.0f} ms), {len(faults.together)} two at a time; "
        f"{len(faults.stored_late)} overtaken that were stored {judge.SLACK_MS} ms after their due",
        not (faults.disordered or faults.together),
    )


def _priorities(puts: list[judge.Put], hand_outs: list[judge.HandOut]) -> Promise:
    found = judge.overtaking({one.body: one for one in puts}, hand_outs)
    return Promise(
        "lanes",
        "priorities under load",
        f"{found.hand_outs:,} handed out, {found.beyond(0):,} while a higher priority was due for "
        f"the same process; {found.beyond(judge.SLACK_MS):,} where it had been for "
        f"{judge.SLACK_MS} ms, the longest {max(found.waits_ms, default=0.0):.0f} ms",
    )


def _backlog(stage: Stage) -> list[Promise]:
    count = _BACKLOG[stage.long]
    with shardq.connect(stage.url) as db:
        queue = db.queue("bands", bands=_BANDS)
        began_us = machine_us()
        priorities = {f"band-{number}": number % _BANDS for number in range(count)}
        put(queue, [{"body": body, "priority": band} for body, band in priorities.items()])
        acked_us = machine_us()
        puts = {
            body: judge.Put(body, began_us // 1_000, began_us, acked_us, priority=band)
            for body, band in priorities.items()
        }
        consumer = stage.consume(queue.name, threads=1)
        stage.wait(lambda: puts.keys() <= stage.handed_out())
        stage.finish(queue)
    hand_outs = judge.read_hand_outs([consumer.out])
    found = judge.overtaking(puts, hand_outs)
    return [
        Promise(
            "lanes",
            "priorities of a backlog",
            f"{found.beyond(0):,} of {found.hand_outs:,} handed out before a higher priority",
            not found.waits_ms and found.hand_outs == count,
        )
    ]
