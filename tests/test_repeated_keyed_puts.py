"""Puts under keys whose answers were lost, and whose messages have run meanwhile, or have not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from keyed import TIMEOUT_MS, as_elsewhere, texts

from shardq.errors import StoreTimeout
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 2 * TIMEOUT_MS / 1e3


@pytest.fixture
def apart() -> Iterator[Stage]:
    """Of a store on other machines."""
    with Stage() as made:
        as_elsewhere(made)
        yield made


def test_a_slow_replace_that_has_run_meanwhile_is_not_put_anew(apart: Stage) -> None:
    queue, other = (apart.connect().queue("mail") for _ in range(2))
    queue.put("first", key="order-7", delay="1h")

    def freeze() -> None:
        apart.clock.advance(PATIENCE_S + 1)
        other.ack(*other.receive())

    apart.faults.call("insert", freeze)
    with pytest.raises(StoreTimeout, match="was taken over while its put was slow") as error:
        queue.put("second", key="order-7", on_conflict="replace", delay="1s")
    assert queue.put(error.value.messages[0]).text == "second"
    apart.clock.advance(7_200)
    # The old row is a copy, of a name that is free by now.
    assert queue.receive(10) == []
