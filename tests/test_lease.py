"""Leases: exclusive, expiring, and careful after an unclean end."""

from __future__ import annotations

import pytest

from shardq.consumer import Consumer
from shardq.engine.leases.lease import TTL_MS, MemberLeases, new_holder
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.model.shard import Shard
from shardq.testing import Stage

ONE, TWO = Shard("mail", 7, 0), Shard("mail", 7, 1)


def leases_of(stage: Stage, member: str, window: int = 50) -> MemberLeases:
    return MemberLeases(stage._store, stage.clock, new_holder(member), window=window)


def test_a_shard_has_one_lease_at_a_time(stage: Stage) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    assert a.take([ONE, TWO]) == {}
    refused = b.take([ONE, TWO])
    assert set(refused) == {ONE, TWO}
    assert (refused[ONE].holder or "").startswith("a/")
    assert len(a) == 2
    assert len(b) == 0


def test_a_lease_that_is_held_is_not_asked_for_again(stage: Stage) -> None:
    a = leases_of(stage, "a")
    a.take([ONE])
    calls = stage.faults.calls["take"]
    assert a.take([ONE]) == {}
    assert stage.faults.calls["take"] == calls


def test_a_lease_is_valid_until_2_s_before_the_store_lets_it_lapse(stage: Stage) -> None:
    a = leases_of(stage, "a")
    a.take([ONE])
    lease = a.get(ONE)
    assert lease is not None
    stage.clock.advance(TTL_MS / 1_000 - 2.001)
    assert a.is_valid(lease)
    stage.clock.advance(0.001)
    assert not a.is_valid(lease)
    assert leases_of(stage, "b").take([ONE])


def test_the_deadline_counts_from_the_sending_of_a_renewal(stage: Stage) -> None:
    a = leases_of(stage, "a")
    a.take([ONE])
    stage.clock.advance(6)
    stage.faults.call("renew", lambda: stage.clock.advance(3))
    assert a.renew() == []
    lease = a.get(ONE)
    assert lease is not None
    stage.clock.advance(4.999)
    assert a.is_valid(lease)
    stage.clock.advance(0.001)
    assert not a.is_valid(lease)


def test_leases_are_renewed_in_time_and_never_lapse(stage: Stage) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    a.take([ONE])
    for _ in range(600):
        stage.clock.advance(0.1)
        assert a.renew() == []
        assert b.take([ONE])
    assert stage.faults.calls["renew"] <= 60 / 6 + 1


@pytest.mark.parametrize(("before_s", "after_s"), [(5, 60), (60, 5)])
def test_a_changed_length_holds_from_a_lease_s_next_renewal_on(
    stage: Stage, before_s: int, after_s: int
) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    a.ttl_ms = before_s * 1_000
    a.take([ONE])
    a.ttl_ms = after_s * 1_000
    lease = a.get(ONE)
    assert lease is not None
    for _ in range(24):
        stage.clock.advance(0.1)
        assert a.renew() == []
        assert a.is_valid(lease)
    assert stage.faults.calls["renew"] == 1
    stage.clock.advance(after_s - 0.3)
    assert b.take([ONE])
    stage.clock.advance(0.3)
    assert b.take([ONE]) == {}


def test_consumers_follow_a_changed_length_of_leases(stage: Stage) -> None:
    queue = stage.connect().queue("mail", lease="5s")
    consumer = Consumer(queue, lambda _: None)
    consumer.step()
    assert consumer._engine.leases.ttl_ms == 5_000
    stage.connect().queue("mail").alter(lease="1m")
    stage.drive(consumer, seconds=5)
    assert consumer._engine.leases.ttl_ms == 60_000
    consumer.close()


def test_a_lease_that_lapsed_is_found_lost_at_its_renewal(stage: Stage) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    a.take([ONE, TWO])
    stage.clock.advance(11)
    b.take([ONE])
    assert ONE in [lease.shard for lease in a.renew()]
    assert a.get(ONE) is None
    assert b.get(ONE) is not None


def test_a_renewal_that_failed_is_tried_again_and_extends_nothing(stage: Stage) -> None:
    a = leases_of(stage, "a")
    a.take([ONE])
    stage.clock.advance(6)
    stage.faults.fail("renew")
    with pytest.raises(StoreUnavailable):
        a.renew()
    lease = a.get(ONE)
    assert lease is not None
    stage.clock.advance(2)
    assert not a.is_valid(lease)
    assert a.renew() == []
    assert a.is_valid(lease)


def test_a_lease_whose_release_has_no_answer_is_void_until_it_is_renewed(stage: Stage) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    a.take([ONE, TWO])
    one, two = a.get(ONE), a.get(TWO)
    assert one is not None
    assert two is not None
    stage.faults.fail("release", applied=True)
    with pytest.raises(StoreTimeout):
        a.release([ONE])
    assert b.take([ONE]) == {}
    assert not a.is_valid(one)
    assert a.is_valid(two)
    stage.clock.advance(6)
    assert [lease.shard for lease in a.renew()] == [ONE]
    assert a.is_valid(two)


def test_a_released_shard_is_taken_without_care(stage: Stage) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    a.take([ONE])
    a.release([ONE])
    assert a.get(ONE) is None
    assert b.take([ONE]) == {}
    lease = b.get(ONE)
    assert lease.careful == 0


def test_who_takes_over_and_dies_too_leaves_as_much_to_be_worked_with_care(stage: Stage) -> None:
    leases_of(stage, "a", window=70).take([ONE])
    stage.clock.advance(11)
    # a may have died of 70 messages; b reads only 5 ahead.
    b = leases_of(stage, "b", window=5)
    b.take([ONE, TWO])
    stage.clock.advance(11)
    b.renew()
    b.take([ONE, TWO])
    stage.clock.advance(11)
    c = leases_of(stage, "c", window=50)
    c.take([ONE, TWO])
    assert {lease.shard: lease.careful for lease in c.held()} == {ONE: 70, TWO: 5}
    c.release([ONE])
    c.take([ONE])
    stage.clock.advance(11)
    d = leases_of(stage, "d", window=5)
    d.take([ONE])
    assert [lease.careful for lease in d.held()] == [50]


def test_what_was_taken_over_with_care_is_so_again_after_a_lapse_of_ones_own(stage: Stage) -> None:
    leases_of(stage, "a", window=7).take([ONE])
    b = leases_of(stage, "b")
    stage.clock.advance(11)
    b.take([ONE])
    for _ in range(2):
        stage.clock.advance(11)
        assert [lease.shard for lease in b.renew()] == [ONE]
        b.take([ONE])
        [lease] = b.held()
        assert (lease.careful, lease.unclean) == (7, True)
    b.release([ONE])
    b.take([ONE])
    [lease] = b.held()
    assert (lease.careful, lease.unclean) == (0, False)


def test_what_has_been_worked_with_care_is_not_again_after_a_lapse_of_ones_own(
    stage: Stage,
) -> None:
    leases_of(stage, "a", window=7).take([ONE])
    b = leases_of(stage, "b")
    stage.clock.advance(11)
    b.take([ONE])
    [first] = b.held()
    # Five are taken in, and one of them is given back before the lapse, one after it.
    first.careful -= 5
    first.give_back()
    stage.clock.advance(11)
    assert b.renew() == [first]
    first.give_back()
    b.take([ONE])
    [second] = b.held()
    assert (second.careful, second.taken_ms) == (4, first.taken_ms)
    # A handler gives another row back only after the shard has been taken again.
    first.give_back()
    stage.clock.advance(11)
    assert b.renew() == [second]
    b.take([ONE])
    [third] = b.held()
    assert third.careful == 5
    third.careful -= 5
    stage.clock.advance(11)
    assert b.renew() == [third]
    b.take([ONE])
    [last] = b.held()
    assert (last.careful, last.unclean) == (0, False)


def test_what_another_had_until_its_lease_was_taken_over_is_worked_with_care(
    stage: Stage,
) -> None:
    a, b = leases_of(stage, "a", window=7), leases_of(stage, "b")
    a.take([ONE])
    stage.clock.advance(11)

    def wake_up() -> None:
        # b has seen the unclean end and stands still: a goes on, and dies only now.
        assert len(a.renew()) == 1
        a.take([ONE])
        stage.clock.advance(11)

    stage.faults.call("take", wake_up, nth=2, after=False)
    b.take([ONE])
    [lease] = b.held()
    assert (lease.careful, lease.taken_ms) == (7, stage.clock.now_ms())


def test_care_is_not_forgotten_for_what_was_lost_though_much_else_was_taken_over(
    stage: Stage,
) -> None:
    others = [Shard("mail", 8, lane) for lane in range(1_100)]
    leases_of(stage, "a", window=7).take([ONE, *others])
    b = leases_of(stage, "b")
    stage.clock.advance(11)
    b.take([ONE])
    b.take(others)
    assert [lease.careful for lease in b.held()] == [7] * 1_101
    stage.clock.advance(11)
    assert len(b.renew()) == 1_101
    for shard in (others[0], ONE, others[-1]):
        b.take([shard])
    # Too many shards are away at once: the one that was lost first is forgotten.
    assert [lease.careful for lease in b.held()] == [7, 0, 7]


def unanswered_take_over(stage: Stage) -> MemberLeases:
    """A member that has taken over from one that died with a window of 7, but got no answer."""
    leases_of(stage, "a", window=7).take([ONE])
    b = leases_of(stage, "b")
    stage.clock.advance(11)
    # The first call sees the unclean holder, the second takes the lease.
    stage.faults.fail("take", nth=2, applied=True)
    with pytest.raises(StoreTimeout):
        b.take([ONE])
    return b


def test_a_take_over_without_an_answer_is_one_when_it_is_repeated(stage: Stage) -> None:
    b = unanswered_take_over(stage)
    assert b.held() == []
    stage.clock.advance(11)
    b.take([ONE])
    [lease] = b.held()
    assert lease.careful == 7


def test_releasing_what_was_lost_does_not_end_its_new_holders_lease(stage: Stage) -> None:
    a, b, c = (leases_of(stage, name) for name in "abc")
    a.take([ONE])
    stage.clock.advance(11)
    b.take([ONE])
    a.release([ONE])
    assert (c.take([ONE])[ONE].holder or "").startswith("b/")


def test_a_lease_whose_taking_failed_unknown_is_ours_or_lapses(stage: Stage) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    stage.faults.fail("take", applied=True)
    with pytest.raises(Exception, match="lost"):
        a.take([ONE])
    assert a.get(ONE) is None
    assert b.take([ONE])
    stage.clock.advance(11)
    assert b.take([ONE]) == {}


def test_what_a_failed_try_has_taken_is_held_by_the_next(stage: Stage) -> None:
    a, b = leases_of(stage, "a"), leases_of(stage, "b")
    stage.faults.fail("take", applied=True)
    with pytest.raises(StoreTimeout):
        a.take([ONE, TWO])
    stage.clock.advance(5)
    # A new process of the same name does not count as another try of this one.
    assert set(leases_of(stage, "a").take([ONE])) == {ONE}
    assert a.take([ONE, TWO]) == {}
    assert len(a) == 2
    # From the renewal on, for its full time: by the store as well.
    stage.clock.advance(7)
    assert all(a.is_valid(lease) for lease in a.held())
    assert set(b.take([ONE, TWO])) == {ONE, TWO}
    a.release([ONE, TWO])
    assert b.take([ONE, TWO]) == {}


def test_what_a_failed_try_has_taken_over_unclean_is_worked_with_care(stage: Stage) -> None:
    b = unanswered_take_over(stage)
    assert b.take([ONE]) == {}
    [lease] = b.held()
    assert (lease.careful, lease.unclean) == (7, True)
