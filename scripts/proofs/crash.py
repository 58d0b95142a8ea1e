"""A consumer is killed half way through its jobs; another one continues within a lease."""

from __future__ import annotations

from typing import TYPE_CHECKING

import shardq
from proofs import judge
from proofs.producer import put
from proofs.promise import Promise
from proofs.verdict import Interruption
from shardq.clock import machine_us
from shardq.engine.leases.lease import TTL_MS

if TYPE_CHECKING:
    from proofs.stage import Stage

_JOBS = (400, 4_000)
_WORK_MS = 30
_THREADS = 8
_GRACE_S = 3


def play(stage: Stage) -> list[Promise]:
    """Put the jobs, kill their consumer half way, start another."""
    jobs = _JOBS[stage.long]
    limit_s = TTL_MS / 1_000 + _GRACE_S
    with shardq.connect(stage.url) as db:
        queue = db.queue("crash")
        began_us = machine_us()
        bodies = [f"job-{number}" for number in range(jobs)]
        put(queue, bodies)
        puts = [judge.Put(body, began_us // 1_000, began_us, machine_us()) for body in bodies]
        first = stage.consume(queue.name, threads=_THREADS, work_ms=_WORK_MS)
        stage.wait(lambda: len(stage.handed_out()) >= jobs // 2)
        killed_us = stage.kill(first)
        before = len(stage.handed_out())
        second = stage.consume(queue.name, threads=_THREADS, work_ms=_WORK_MS)
        wanted = set(bodies)
        stage.wait(lambda: wanted <= stage.handed_out())
        hand_outs = stage.finish(queue)
    cut = Interruption(first.out.name, "killed", killed_us, killed_us)
    verdict = judge.whole(puts, hand_outs, [cut])
    done_us: dict[str, int] = {}
    for one in hand_outs:
        done_us[one.body] = min(one.ended_us, done_us.get(one.body, one.ended_us))
    seconds = (max(done_us.values(), default=killed_us) - killed_us) / 1e6
    taken = [one.began_us for one in hand_outs if one.consumer == second.out.name]
    resumed_s = (min(taken, default=killed_us) - killed_us) / 1e6
    return [
        Promise(
            "crash",
            "all done",
            f"{verdict.delivered:,} of {verdict.put:,} jobs of {_WORK_MS} ms, lost "
            f"{len(verdict.lost)}; {before} done at the kill",
            not (verdict.lost or verdict.foreign),
        ),
        Promise(
            "crash",
            "twice only what was in flight",
            f"{sum(verdict.excused.values())} in flight at the kill, "
            f"{len(verdict.duplicated)} without a reason",
            not verdict.duplicated,
        ),
        Promise(
            "crash",
            "within a lease",
            f"last job done {seconds:.2f} s after the kill (less than {limit_s:.0f}), the first "
            f"of the new consumer begun after {resumed_s:.2f}",
            not verdict.lost and seconds < limit_s,
        ),
    ]
