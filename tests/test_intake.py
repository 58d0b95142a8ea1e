"""Taking rows in: what is another's, what was settled meanwhile, whose turn it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shardq import Consumer
from shardq.testing import Recorder, Stage


@pytest.fixture
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


def test_what_is_settled_between_a_read_and_the_lease_is_not_handed_out_again(
    stage: Stage,
) -> None:
    queue = stage.connect().queue("mail", lanes=1)
    seen, again = Recorder(stage.clock), Recorder(stage.clock)
    first = Consumer(queue, seen)
    second = Consumer(stage.connect().queue("mail"), again)
    queue.put("x")
    stage.clock.advance(0.01)
    while (running := first.engine.ready.take()) is None:
        first.engine.step()

    def hand_over() -> None:
        first._deliver(running)
        first.close()

    # The second has read the row by now, and gets its lease from the first in good order.
    stage.faults.call("take", hand_over, after=False)
    stage.drive(second, seconds=10)
    assert seen.texts == ["x"]
    assert again.texts == []
    assert stage.is_empty(queue)
