"""The rule of second deliveries, on worlds that are made for one of its causes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from shardq.model.ids import birth_us
from shardq.testing.simulation.network import DONE
from simulation.checker import judge
from simulation.plan import LIMIT_BYTES, Act, Event, Letter, Machine, Plan
from simulation.world import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from shardq.model.message import Row
    from shardq.stores.store import Move
    from shardq.testing.simulation.scheduler import Process

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


def test_what_a_caller_claims_anew_since_maybe_it_had_may_come_twice_and_nothing_else() -> None:
    # Of the large claim that its caller makes first the insert is lost. It comes seconds later, and
    # is due just before what was made of the second.
    retry, ack = Act("retry", delay_ms=1_000), Act("ack")
    acts = (retry, Act("retry", delay_ms=12_720), ack, ack)
    plan = Plan(
        1,
        _SETTINGS,
        {"timeout_us": 300_000, "move_bytes": LIMIT_BYTES},
        (Machine("p0", "producer"), Machine("r0", "caller", visibility_s=14.0)),
        (Letter(1, "p0", 1.0, size=2 * LIMIT_BYTES, acts=acts),),
        (Event(1, 0.5, "fail", "r0", value=1, verb="insert"),),
        active_s=20.0,
    )
    world = World(plan)
    network, scheduler = world.simulation.network, world.simulation.scheduler
    on_call, on_move = network.on_call, network.on_move
    claims: list[Row] = []

    def note(moves: Sequence[Move]) -> None:
        claims.extend(move.new for move in moves)
        on_move(moves)

    def lose(process: Process, verb: str, fate: int, about: object) -> None:
        on_call(process, verb, fate, about)
        if verb == "insert" and fate != DONE:
            network.on_unknown(process, verb, [claims[0].id])
            scheduler.at(scheduler.now_us + 13_500_000, partial(arrive, process))

    def arrive(process: Process) -> None:
        network.sender = process
        world.simulation.cells.write(claims[0], birth_us(claims[0].id))
        network.sender = None

    network.on_call, network.on_move = lose, note
    history = world.run()
    ones = [(one.outcome, one.attempt) for one in history.deliveries if one.token == 1]
    assert ones == [("retry", 1), ("retry", 2), ("ack", 2), ("ack", 3)]
    verdict = judge(history)
    assert (verdict.breaches, verdict.causes) == ([], {"unknown write": 1})
    history.unknown.clear()
    assert [breach.rule for breach in judge(history).breaches] == ["duplicated"]
