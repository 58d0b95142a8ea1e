"""The rule of second deliveries, on worlds that are made for one of its causes."""

from __future__ import annotations

from simulation.checker import judge
from simulation.plan import LIMIT_BYTES, Act, Event, Letter, Machine, Plan
from simulation.world import World

_SETTINGS = {
    "minute": "60000ms", "offset": "120000ms", "lanes": 1, "bands": 1, "attempts": 4,
    "backoff": "300ms", "backoff_max": "4s", "hold": "500ms", "visibility": "8000ms",
}  # fmt: skip


def test_what_a_caller_moves_anew_since_maybe_it_had_may_come_twice_and_nothing_else() -> None:
    # Of the large move that its caller asks for first the delete is refused.
    acts = (Act("retry", seconds=0.9, delay_ms=100), Act("ack"))
    plan = Plan(
        1,
        _SETTINGS,
        {"timeout_us": 300_000, "move_bytes": LIMIT_BYTES},
        (Machine("p0", "producer"), Machine("r0", "caller")),
        (Letter(1, "p0", 1.0, size=2 * LIMIT_BYTES, acts=acts),),
        (Event(1, 1.5, "fail", "r0", value=1, verb="delete"),),
        active_s=4.0,
    )
    history = World(plan).run()
    assert [one.outcome for one in history.deliveries if one.token == 1] == ["retry", "ack", "ack"]
    verdict = judge(history)
    assert (verdict.breaches, verdict.causes) == ([], {"unknown write": 1})
    for one in history.deliveries:
        one.unsure_us.clear()
    assert [breach.rule for breach in judge(history).breaches] == ["duplicated"]
