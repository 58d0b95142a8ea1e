"""What an audit says while all goes on, on a world that is made for one thing that it may see."""

from __future__ import annotations

from simulation.accounts import accounted
from simulation.case import QUEUE, Case
from simulation.plan import Act, Event, Letter, Machine, Plan
from simulation.world import World

_SETTINGS = {
    "minute": "60000ms", "offset": "120000ms", "lanes": 1, "bands": 1, "attempts": 4,
    "backoff": "300ms", "backoff_max": "4s", "hold": "500ms", "visibility": "8000ms",
    "history": "1h",
}  # fmt: skip


def test_an_audit_may_count_an_end_until_a_sooner_one_has_taken_its_place() -> None:
    plan = Plan(
        1,
        _SETTINGS,
        {"timeout_us": 300_000},
        (Machine("p0", "producer"), Machine("c0", "consumer")),
        (Letter(1, "p0", 1.0, acts=(Act("ack"),)),),
        (Event(1, 3.0, "audit"),),
        active_s=5.0,
    )
    history = World(plan).run()
    [one] = (one for one in history.deliveries if one.token == 1)
    look, key = history.looks[0], (QUEUE, one.row.id)
    [(us, fate)] = history.ended[key]
    assert (look.audit.total.acked, fate) == (1, "acked")
    for other_us, rules in (
        (look.begun_us - 1, {"accounted"}),
        (look.begun_us + 1, set()),
        (look.ended_us + 1, set()),
    ):
        history.looks = [look]
        history.ended[key] = [(us, "acked"), (other_us, "purged")]
        assert {breach.rule for breach in accounted(Case(history))} == rules
