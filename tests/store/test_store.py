"""The contract of what a store tells of itself: its time, its news, its name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq import clock

if TYPE_CHECKING:
    from shardq.stores.store import Store
    from store.parts import Hands

from store.parts import (
    everything,
    make_row,
)


def test_each_node_tells_its_time(store: Store, kind: str, hands: Hands) -> None:
    clocks = store.clocks()
    assert clocks
    for ask_us in clocks.values():
        told = ask_us()
        true = clock.machine_us() if kind == "cassandra" else hands.us
        assert isinstance(told, int)
        assert abs(told - true) < 60_000_000


def test_nothing_has_changed_while_nobody_wrote(store: Store, queue: str) -> None:
    first = store.changed()
    assert first is None or isinstance(first, int)
    store.read(everything([make_row(queue)]))
    assert store.changed() == first


def test_a_store_describes_itself(store: Store, kind: str) -> None:
    shown = store.shown
    named = {"cassandra": "cassandra", "simulated": "simulated"}.get(kind, "sqlite")
    assert named in shown.lower()
