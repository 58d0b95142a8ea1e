"""A purge under load deletes the messages that entered before it, and none that entered after."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shardq
from proofs import judge
from proofs.promise import Promise
from shardq.clock import machine_us

if TYPE_CHECKING:
    from proofs.stage import Stage

_RATE = 500
_SECONDS = (24, 90)
_PURGED_AFTER_S = 10
_DELAYS_MS = (0, 8_000, 1_000, 12_000)
_WORK_MS = 2
_HOLDS_S = 5


def play(stage: Stage) -> list[Promise]:
    """Purge while two producers put and two consumers take."""
    with shardq.connect(stage.url) as db:
        queue = db.queue("purge")
        for _ in range(2):
            stage.consume(queue.name, work_ms=_WORK_MS)
        for _ in range(2):
            stage.produce(
                queue.name, rate=_RATE, seconds=_SECONDS[stage.long], delays_ms=_DELAYS_MS
            )
        stage.sleep(_PURGED_AFTER_S)
        called_us = machine_us()
        queue.purge()
        returned_us = machine_us()
        puts = stage.wait_for_producers()
        wanted = {one.body for one in puts if one.began_us > returned_us}
        stage.wait(lambda: wanted <= stage.handed_out())
        hand_outs = stage.finish(queue)
    faults = judge.purge_faults(
        puts,
        hand_outs,
        called_us=called_us,
        returned_us=returned_us,
        holds_us=_HOLDS_S * 1_000_000,
    )
    verdict = judge.whole(puts, hand_outs)
    return [
        Promise(
            "purge",
            f"holds after {_HOLDS_S} s",
            f"{len(faults.delivered)} of {faults.before:,} that entered before came later, the "
            f"last at all {max(faults.last_ms, 0) / 1_000:.2f} s after the call; "
            f"{faults.purged:,} purged",
            not faults.delivered and faults.purged > 0,
        ),
        Promise(
            "purge",
            "nothing else lost",
            f"{len(faults.lost)} of {faults.after:,} that entered after; {faults.between} put "
            f"during the call of {(returned_us - called_us) / 1_000:.0f} ms",
            not faults.lost and faults.after > 0,
        ),
        Promise(
            "purge",
            "none twice",
            f"{verdict.repeats} twice, {len(verdict.early)} early",
            not (verdict.repeats or verdict.early or verdict.foreign),
        ),
    ]
