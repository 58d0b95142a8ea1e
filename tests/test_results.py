"""Results: what is said of a message stands, in the order in which it was said, until its time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from worlds import World, on_each_store, world_of

import shardq
from shardq.clock import machine_us
from shardq.errors import BadBody, BadTime, StoreCorrupt
from shardq.model.times import KEPT_MS_MAX
from shardq.records.results import VALUE_BYTES_MAX, Result, Results
from shardq.stores.tables import RESULTS, ResultNote
from shardq.testing import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from shardq import Queue


KEEP_MS = 600_000
POLLS = 600


@pytest.fixture
def queue(world: World) -> Queue:
    return world.connect().queue(world.queue_name())


@pytest.fixture
def results(queue: Queue) -> Results:
    return queue._home.results


@on_each_store
def test_what_is_said_of_a_message_reads_back(world: World, results: Results) -> None:
    assert results.read("id") is None
    before_ms = world.clock.now_ms()
    full = Result("failed", 7, b'"x"', "no é", "Traceback ..", 0.25, "a quarter")
    bare = Result("done")
    results.write("id", full, KEEP_MS)
    results.write("bare", bare, KEEP_MS)
    found = results.read_many(["id", "bare", "none", "id"])
    for message_id, said in {"id": full, "bare": bare}.items():
        at_ms = found[message_id].at_ms
        assert found[message_id] == replace(said, at_ms=at_ms)
        assert before_ms <= at_ms <= world.clock.now_ms() + 1
    assert found.keys() == {"id", "bare"}
    assert results.read_many([]) == {}


def test_an_id_is_of_its_queue_alone(world: World, queue: Queue) -> None:
    other = world.connect().queue(f"{queue.name}-b")
    queue._home.results.write("id", Result("done", 1, b"1"), KEEP_MS)
    assert other._home.results.read("id") is None
    other._home.results.write("id", Result("done", 1, b"2"), KEEP_MS)
    assert [one._home.results.read("id").value for one in (queue, other)] == [b"1", b"2"]


def test_what_is_said_later_stands_whoever_says_it(world: World, queue: Queue) -> None:
    twin = world.connect().queue(queue.name)._home.results
    for said in (
        Result("running", 1),
        Result("running", 1, progress=0.5),
        Result("retrying", 1, error="no"),
        Result("running", 2),
        Result("done", 2, b"3"),
    ):
        for one in (queue._home.results, twin):
            one.write("id", said, KEEP_MS)
            for reader in (queue._home.results, twin):
                found = reader.read("id")
                assert found == replace(said, at_ms=found.at_ms)
        world.pass_time(0.01)


def test_what_is_said_later_stands_where_the_clock_was_set_back(tmp_path: Path) -> None:
    with shardq.connect(f"sqlite:///{tmp_path}/jobs.db") as db:
        results = db.queue("mail")._home.results
        hour_us = 3_600_000_000
        sooner = ResultNote("retrying", 1, b"", "no", "", -1, "", 0, machine_us() + hour_us)
        db._home.store.note(RESULTS, (), {("mail", "id"): sooner}, KEEP_MS)
        for said in (Result("running", 2), Result("done", 2, b"1")):
            results.write("id", said, KEEP_MS)
            assert results.read("id").state == said.state


def test_an_end_stands_though_another_clock_is_behind_it() -> None:
    # Two members of a cluster, whose clocks differ by less than they may.
    written = []

    class Far:
        """A store that is not local, and says what it was told to write."""

        is_local = False

        def note(self, _table, _partition, notes, _ttl_ms) -> None:
            written.extend(note.written for note in notes.values())

    ahead, behind = ManualClock(), ManualClock()
    ahead.advance(0.5)
    Results(Far(), ahead, "mail").write("id", Result("retrying", 1), KEEP_MS)
    Results(Far(), behind, "mail").write("id", Result("done", 2), KEEP_MS)
    assert written[1] > written[0]


@on_each_store
def test_a_result_goes_when_its_time_is_up(world: World, results: Results) -> None:
    results.write("brief", Result("done", 1, b"1"), 1_000)
    results.write("long", Result("done", 1, b"1"), KEEP_MS)
    assert results.read("brief") is not None
    for _ in range(POLLS):
        if results.read("brief") is None:
            break
        world.pass_time(0.1)
    assert results.read_many(["brief", "long"]).keys() == {"long"}


def test_long_texts_are_cut_and_halves_of_characters_escaped(results: Results) -> None:
    said = Result("failed", 1, None, "e" * 9_000 + "!", "<" + "t" * 9_000, 7.5, "n\ud800" * 2_000)
    results.write("id", said, KEEP_MS)
    found = results.read("id")
    assert (found.error, found.traceback) == ("e" * 8_000, "t" * 8_000)
    assert found.progress == 1.0
    assert len(found.note) == 1_000
    assert found.note.startswith("n\\ud800n")


@on_each_store
def test_a_value_of_a_mebibyte_is_kept_and_a_larger_one_refused(
    queue: Queue, results: Results
) -> None:
    largest = b'"' + b"x" * (VALUE_BYTES_MAX - 2) + b'"'
    results.write("id", Result("done", 1, largest), KEEP_MS)
    assert results.read("id").value == largest
    with pytest.raises(BadBody, match=rf"^message id of queue '{queue.name}': .* 1,048,577 bytes"):
        results.write("id", Result("done", 2, largest + b" "), KEEP_MS)
    assert results.read("id").attempt == 1


@on_each_store
@pytest.mark.parametrize("keep_ms", [0, -1, KEPT_MS_MAX + 1])
def test_a_result_that_cannot_be_kept_so_long_is_refused(results: Results, keep_ms: int) -> None:
    with pytest.raises(BadTime, match="a result is kept for"):
        results.write("id", Result("done"), keep_ms)
    results.write("id", Result("done"), KEPT_MS_MAX)
    assert results.read("id") is not None


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("state", "lost"),
        ("state", None),
        ("attempt", -1),
        ("value", "text"),
        ("error", b"x"),
        ("progress", 1_000_001),
        ("note", 7),
        ("entered", None),
        ("written", -1),
    ],
)
def test_a_damaged_result_is_named(column: str, value: object) -> None:
    request = type("Request", (), {"param": "memory"})
    for world in world_of(request):
        queue = world.connect().queue("mail")
        queue._home.results.write("id", Result("done", 1, b"1"), KEEP_MS)
        stored = queue._home.store.notes(RESULTS, (), [("mail", "id")])["mail", "id"]

        note = stored._replace(**{column: value})
        queue._home.store.notes = lambda *_, note=note: {("mail", "id"): note}
        told = rf"^the result of message id of queue 'mail' is damaged: {column} is "
        with pytest.raises(StoreCorrupt, match=told):
            queue._home.results.read("id")
