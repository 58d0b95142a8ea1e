"""Members and their ranks."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq import Queue
from shardq.errors import StoreUnavailable
from shardq.records.membership import (
    BEAT_MS,
    PASS_ON_MS,
    Heartbeat,
    Membership,
    heartbeats,
    ranking,
    rankings,
    reported_runs,
)
from shardq.stores.tables import MEMBERS
from shardq.testing import Stage

NAMES = st.lists(st.text("abcdef:-", min_size=1, max_size=12), min_size=1, max_size=9, unique=True)


def member(stage: Stage, name: str) -> Membership:
    return Membership(stage._store, stage.clock, "mail", name)


def ranks_of(members: list[Membership], lanes: range, stage: Stage) -> list[dict[int, int]]:
    return [one.ranks(lanes, stage.clock.now_ms()) for one in members]


def beat(one: Membership, *, free: int = 0, surplus: int = 0, leaving: bool = False) -> bool:
    return one.beat(Heartbeat, demand=not leaving, free=free, surplus=surplus, leaving=leaving)


def told_by(stage: Stage, name: str) -> Heartbeat:
    return heartbeats(stage._store, "mail")[name]


@given(NAMES, st.integers(0, 4_095))
def test_every_process_ranks_the_members_of_a_lane_alike(names: list[str], lane: int) -> None:
    assert ranking(lane, names) == ranking(lane, reversed(names))
    assert sorted(ranking(lane, names)) == sorted(names)


@given(NAMES, st.integers(0, 4_095))
def test_a_member_that_goes_changes_only_its_own_lanes(names: list[str], lane: int) -> None:
    ranked = ranking(lane, names)
    for gone in names:
        assert ranking(lane, [n for n in names if n != gone]) == [n for n in ranked if n != gone]


@given(st.lists(st.text(max_size=8), min_size=1, max_size=24, unique=True), st.integers(1, 64))
def test_no_member_has_more_than_one_lane_less_than_another(names: list[str], lanes: int) -> None:
    counts = Counter(order[0] for order in rankings(range(lanes), names).values())
    assert max(counts[name] for name in names) - min(counts[name] for name in names) <= 1


@given(st.lists(st.text(max_size=8), min_size=1, max_size=24, unique=True))
def test_lanes_keep_their_readers_where_a_queue_grows_to_twice_as_many(names: list[str]) -> None:
    many = rankings(range(64), names)
    for lanes in (8, 16, 32):
        few = rankings(range(lanes), names)
        assert {lane: order[0] for lane, order in few.items()} == {
            lane: many[lane][0] for lane in few
        }


def test_each_lane_has_exactly_one_first_reader(stage: Stage) -> None:
    members = [member(stage, f"m{n}") for n in range(3)]
    for _ in range(2):
        for one in members:
            one.beat(Heartbeat, demand=True)
        stage.clock.advance(BEAT_MS / 1_000)
    ranks = ranks_of(members, range(8), stage)
    for lane in range(8):
        assert sorted(rank[lane] for rank in ranks) == [0, 1, 2]


def test_heartbeats_come_every_3_s_and_at_once_where_demand_changes(stage: Stage) -> None:
    one = member(stage, "m")
    assert one.beat(Heartbeat, demand=True)
    stage.clock.advance(2.999)
    assert not one.beat(Heartbeat, demand=True)
    assert one.beat(Heartbeat, demand=False)
    stage.clock.advance(3)
    assert one.beat(Heartbeat, demand=False)


def test_a_member_without_demand_is_given_no_lane(stage: Stage) -> None:
    busy, free = member(stage, "busy"), member(stage, "free")
    busy.beat(Heartbeat, demand=False)
    free.beat(Heartbeat, demand=True)
    assert free.others == []


def test_a_member_that_dies_is_forgotten_within_10_s(stage: Stage) -> None:
    dead, alive = member(stage, "dead"), member(stage, "alive")
    dead.beat(Heartbeat, demand=True)
    alive.beat(Heartbeat, demand=True)
    assert alive.others == ["dead"]
    for _ in range(4):
        stage.clock.advance(BEAT_MS / 1_000)
        alive.beat(Heartbeat, demand=True)
    assert alive.others == []


def test_where_members_outnumber_lanes_every_one_has_its_turn(stage: Stage) -> None:
    members = [member(stage, f"m{n}") for n in range(5)]
    for _ in range(2):
        for one in members:
            one.beat(Heartbeat, demand=True)
        stage.clock.advance(BEAT_MS / 1_000)
    turns: Counter[str] = Counter()
    for _ in range(10):
        ranks = ranks_of(members, range(2), stage)
        for lane in range(2):
            [first] = [m.member for m, rank in zip(members, ranks, strict=True) if rank[lane] == 0]
            turns[first] += 1
        stage.clock.advance(PASS_ON_MS / 1_000)
    assert turns == {one.member: 4 for one in members}


def test_a_heartbeat_that_failed_is_sent_again(stage: Stage) -> None:
    one = member(stage, "m")
    stage.faults.fail("note members")
    with pytest.raises(StoreUnavailable):
        one.beat(Heartbeat, demand=True)
    assert one.beat(Heartbeat, demand=True)
    assert list(stage._store.notes(MEMBERS, ("mail",))) == ["m"]


def test_a_change_of_demand_is_told_even_where_the_others_could_not_be_read(stage: Stage) -> None:
    stage.connect().queue("mail")
    one = member(stage, "a")
    assert one.beat(Heartbeat, demand=True)
    stage.faults.fail("notes members")
    with pytest.raises(StoreUnavailable):
        one.beat(Heartbeat, demand=False)
    assert one.beat(Heartbeat, demand=False)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "[" * 100_000,
        '{"demand":1}',
        '{"busy":"2"}',
        '{"ready":-1}',
        '{"lanes":[0,null]}',
        '{"runs":[["a",1,2]]}',
        '{"free":513}',
        '{"parted":["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o","p","q"]}',
    ],
)
def test_a_heartbeat_that_cannot_be_read_is_passed_over(
    stage: Stage, queue: Queue, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = member(stage, "one"), member(stage, "other")
    other.beat(Heartbeat, demand=True)
    stage._store.note(MEMBERS, ("mail",), {"damaged": text}, 10_000)
    assert one.beat(Heartbeat, demand=True)
    assert one.others == ["other"]
    assert "'damaged'" in caplog.text
    assert queue.depth().total == 0


def test_what_a_newer_shardq_tells_besides_is_passed_over(stage: Stage) -> None:
    stage._store.note(MEMBERS, ("mail",), {"newer": '{"busy":2,"mood":"good"}'}, 10_000)
    assert heartbeats(stage._store, "mail") == {"newer": Heartbeat(busy=2)}


def test_what_handlers_run_is_told_first_begun_first_and_has_a_bound(stage: Stage) -> None:
    told = reported_runs((f"m{n}", n) for n in reversed(range(100)))
    assert told == tuple((f"m{n}", n) for n in range(32))
    stage._store.note(MEMBERS, ("mail",), {"m": Heartbeat(runs=told).to_json()}, 10_000)
    assert heartbeats(stage._store, "mail")["m"].runs == told
    long = reported_runs((f"{n}" * 1_000, n) for n in range(5))
    assert [begun_ms for _, begun_ms in long] == [0, 1, 2]


def test_free_slots_are_told_ten_times_a_second_at_most_and_only_beside_others(
    stage: Stage,
) -> None:
    one = member(stage, "one")
    beat(one)
    stage.clock.advance(1)
    beat(one, free=2)
    assert told_by(stage, "one").free == 0
    beat(member(stage, "other"))
    stage.clock.advance(2)
    beat(one, free=2)
    assert told_by(stage, "one").free == 2
    stage.clock.advance(0.099)
    beat(one, free=1)
    assert told_by(stage, "one").free == 2
    stage.clock.advance(0.001)
    beat(one, free=1)
    assert told_by(stage, "one").free == 1


def test_each_heartbeat_has_a_number_of_its_own(stage: Stage) -> None:
    one = member(stage, "one")
    numbers = []
    for _ in range(3):
        beat(one)
        numbers.append(told_by(stage, "one").number)
        stage.clock.advance(3)
    assert numbers == [1, 2, 3]


def test_surplus_is_told_when_it_comes_and_when_it_is_gone(stage: Stage) -> None:
    one, other = member(stage, "one"), member(stage, "other")
    beat(other)
    beat(one)
    at_ms = stage.clock.now_ms()
    # A change of age below half a second is not reported: it does not change who gives first.
    for surplus, oldest_ms, told_ms in (
        (5, at_ms, at_ms),
        (4, at_ms + 249, at_ms),
        (3, at_ms + 250, at_ms + 250),
        (0, 0, 0),
    ):
        stage.clock.advance(0.1)
        one.beat(Heartbeat, demand=True, surplus=surplus, oldest_ms=oldest_ms)
        assert told_by(stage, "one").oldest_ms == told_ms
    assert told_by(stage, "one").surplus == 0


@pytest.mark.parametrize(
    ("local", "beside_s"),
    [(False, 0.4), (True, 0.25)],
)
def test_others_are_read_the_sooner_the_more_it_matters(local: bool, beside_s: float) -> None:
    with Stage(local=local) as stage:
        one = member(stage, "one")

        def seconds_until_noticed(name: str, *, surplus: int = 0, leaving: bool = False) -> float:
            beat(one, surplus=surplus, leaving=leaving)
            stage.clock.advance(0.001)
            beat(one, surplus=surplus, leaving=leaving)
            beat(member(stage, name))
            since_us = stage.clock.boot_us()
            while name not in one.beats:
                stage.clock.advance(0.001)
                beat(one, surplus=surplus, leaving=leaving)
            return (stage.clock.boot_us() - since_us) / 1e6

        assert 2.9 < seconds_until_noticed("first") <= 3
        assert beside_s * 0.9 < seconds_until_noticed("second") <= beside_s
        assert seconds_until_noticed("third", surplus=1) <= 0.05
        assert seconds_until_noticed("fourth", leaving=True) <= 0.05


@pytest.mark.parametrize(("members", "reads"), [(8, 20), (16, 20), (64, 5)])
def test_many_members_with_surplus_read_each_other_the_more_rarely(
    stage: Stage, members: int, reads: int
) -> None:
    for n in range(members):
        beat(member(stage, f"other {n}"))
    one = member(stage, "one")
    beat(one, surplus=1)
    before = stage.faults.calls["notes members"]
    for _ in range(1_000):
        stage.clock.advance(0.001)
        beat(one, surplus=1)
    assert stage.faults.calls["notes members"] - before == reads


def test_lanes_are_assigned_anew_as_soon_as_others_are_seen_to_come_or_go(stage: Stage) -> None:
    one, other = member(stage, "one"), member(stage, "other")
    beat(one)
    beat(other)
    stage.clock.advance(3)
    assert beat(one)
    stage.clock.advance(1)
    assert not beat(one)
    other.leave()
    stage.clock.advance(1)
    assert beat(one)
    assert one.others == []


def test_a_member_that_leaves_is_told_by_each_other_that_it_was_taken_into_account(
    stage: Stage,
) -> None:
    leaver, stayer = member(stage, "leaver"), member(stage, "stayer")
    beat(leaver)
    beat(stayer)
    beat(leaver, leaving=True)
    stage.clock.advance(1)
    assert beat(stayer)
    assert stayer.others == []
    assert told_by(stage, "stayer").parted == ()
    assert stayer.is_awaited
    beat(stayer)
    assert told_by(stage, "stayer").parted == ("leaver",)
    assert not stayer.is_awaited


def test_a_member_known_to_be_dead_is_none_until_it_starts_again(stage: Stage) -> None:
    one, other = member(stage, "one"), member(stage, "other")
    other.beat(lambda: Heartbeat(holder="other/1"), demand=True)
    beat(one)
    one.bury(["other"])
    assert one.others == []
    stage.clock.advance(1)
    beat(one)
    assert one.others == []
    member(stage, "other").beat(lambda: Heartbeat(holder="other/2"), demand=True)
    stage.clock.advance(3)
    beat(one)
    assert one.others == ["other"]


def test_a_member_taken_for_dead_is_one_again_once_it_has_beaten_anew(stage: Stage) -> None:
    one, other = member(stage, "one"), member(stage, "other")
    other.beat(lambda: Heartbeat(holder="other/1"), demand=True)
    beat(one)
    stage.clock.advance(3)
    other.beat(lambda: Heartbeat(holder="other/1"), demand=True)
    one.bury(["other"])
    for _ in range(2):
        stage.clock.advance(3)
        beat(one)
        assert one.others == []
        assert one.take_returned() == []
    stage.clock.advance(3)
    other.beat(lambda: Heartbeat(holder="other/1"), demand=True)
    beat(one)
    assert one.others == ["other"]
    assert one.take_returned() == ["other/1"]
    assert one.take_returned() == []


def test_a_member_has_a_lane_of_every_band(stage: Stage) -> None:
    members = [member(stage, f"m{n}") for n in range(4)]
    for _ in range(2):
        for one in members:
            beat(one)
        stage.clock.advance(3)
    for one in members:
        ranks = one.ranks(range(10, 34), stage.clock.now_ms(), bands=3)
        mine = [lane for lane, rank in ranks.items() if rank == 0]
        assert len(mine) == 6
        assert {(lane - 10) % 3 for lane in mine} == {0, 1, 2}
