"""A second delivery is excused by a trouble in which the first was in flight, and by no other."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from proofs import repeats
from proofs.judge import HandOut
from proofs.repeats import Kind, Trouble

if TYPE_CHECKING:
    from pathlib import Path

    from proofs.repeats import Repeats, Times

S = 1_000_000
KILLED = Trouble("killed", Kind.KILLED, 10 * S, 10 * S, "one")
FROZEN = Trouble("frozen", Kind.FROZEN, 10 * S, 25 * S, "one", threads=2)
STORE = Trouble("no quorum", Kind.STORE, 10 * S, 20 * S)
ZOMBIES = Trouble("zombies", Kind.ZOMBIES, 10 * S, 30 * S, grace_us=10 * S)


def hand_out(
    at_s: float,
    consumer: str = "one",
    body: str = "a",
    number: int = 0,
    outcome: str = "acked",
    attempt: int = 1,
) -> HandOut:
    began_us = round(at_s * S)
    return HandOut(
        number,
        f"id-{body}",
        body,
        began_us // 1_000,
        began_us,
        began_us + 1_000,
        attempt,
        outcome,
        consumer=consumer,
    )


def settled(*at_s: float, consumer: str = "one", body: str = "a") -> Times:
    return {(consumer, f"id-{body}"): [round(one * S) for one in at_s]}


def judged(
    hand_outs: list[HandOut], when: Times, *troubles: Trouble, taken: Times | None = None
) -> Repeats:
    return repeats.judge(hand_outs, when, taken or {}, troubles)


def why(found: Repeats) -> str:
    assert not found.excused
    ((_, reason),) = found.unexplained
    return reason


def test_what_came_once_needs_no_cause() -> None:
    found = judged([hand_out(9.9), hand_out(9.9, body="b")], settled(9.95), KILLED)
    assert not found.excused
    assert not found.unexplained
    assert found.in_flight == {"killed": 1}


def test_what_came_twice_without_trouble_has_no_cause() -> None:
    assert why(judged([hand_out(1), hand_out(12)], {})) == "nothing was wrong"


@pytest.mark.parametrize("trouble", [KILLED, FROZEN, STORE])
def test_what_was_in_flight_may_come_again_when_the_lease_is_over(trouble: Trouble) -> None:
    found = judged([hand_out(9.99), hand_out(19.9, "two")], {}, trouble)
    assert found.excused == {trouble.cause: 1}
    assert not found.unexplained


@pytest.mark.parametrize("trouble", [KILLED, FROZEN, STORE])
def test_what_was_settled_before_the_trouble_may_not_come_again(trouble: Trouble) -> None:
    found = judged([hand_out(9.8), hand_out(19.9, "two")], settled(9.9), trouble)
    assert why(found).endswith("settled before")


def test_what_was_settled_in_a_trouble_may_not_come_again_long_after() -> None:
    found = judged([hand_out(11), hand_out(19, "two")], settled(11.1), STORE)
    assert why(found) == "no quorum: it had been settled for 7.9 s when it was read"


def test_what_was_settled_when_it_was_read_already_may_come_again() -> None:
    found = judged([hand_out(11), hand_out(19, "two")], settled(17), STORE)
    assert found.excused == {"no quorum": 1}


def test_what_was_read_before_its_ack_may_wait_for_its_hand_out() -> None:
    deliveries = [hand_out(11), hand_out(29, "two")]
    read = settled(1, 19, 40, consumer="two")
    found = judged(deliveries, settled(17), STORE, taken=read)
    assert found.excused == {"no quorum": 1}
    found = judged(deliveries, settled(15), STORE, taken=read)
    assert why(found) == "no quorum: it had been settled for 4.0 s when it was read"


def test_what_its_consumer_has_not_read_anew_may_not_come_again() -> None:
    deliveries = [hand_out(11), hand_out(19)]
    assert judged(deliveries, settled(12), STORE, taken=settled(14)).excused
    found = judged(deliveries, settled(12), STORE, taken=settled(10))
    assert why(found) == "no quorum: it had been settled for 7.0 s when it was read"


def test_what_hung_soon_after_the_store_was_back_may_come_again() -> None:
    deliveries = [hand_out(29.9), hand_out(41, "two")]
    assert judged(deliveries, {}, STORE).excused == {"no quorum": 1}
    assert judged(deliveries, settled(40.5), STORE).in_flight == {"no quorum": 1}
    assert why(judged(deliveries, settled(30.8), STORE)) == "nothing was wrong"


@pytest.mark.parametrize("trouble", [KILLED, FROZEN])
def test_a_consumer_s_trouble_has_no_end_of_its_own(trouble: Trouble) -> None:
    deliveries = [hand_out(25.6), hand_out(41, "two")]
    assert why(judged(deliveries, {}, trouble)) == "nothing was wrong"


@pytest.mark.parametrize("trouble", [KILLED, FROZEN, STORE])
def test_two_that_hold_a_row_at_once_are_no_trouble_s(trouble: Trouble) -> None:
    found = judged([hand_out(9.9), hand_out(10.3, "two")], {}, trouble)
    assert "no lease runs out" in why(found)


@pytest.mark.parametrize("trouble", [KILLED, FROZEN])
def test_a_lease_that_was_just_renewed_does_not_run_out_at_once(trouble: Trouble) -> None:
    found = judged([hand_out(9.9), hand_out(13.8, "two")], {}, trouble)
    assert "no lease runs out in 3.90 s" in why(found)
    assert not judged([hand_out(9.9), hand_out(13.8, "two")], {}, STORE).unexplained


@pytest.mark.parametrize(
    ("consumer", "at_s", "for_s", "was_stopped"),
    [
        ("one", 9, 17, True),
        ("one", 25.4, 1, True),
        ("one", 25.6, 1, False),
        ("one", 9, 1, False),
        ("two", 9, 17, False),
    ],
)
def test_two_of_a_group_at_a_time_may_run_where_one_of_them_was_stopped(
    consumer: str, at_s: float, for_s: float, *, was_stopped: bool
) -> None:
    one = hand_out(at_s, consumer)
    one = one._replace(ended_us=one.began_us + round(for_s * S))
    assert repeats.stood_still((one, hand_out(25.9, "three")), [KILLED, FROZEN]) is was_stopped


@pytest.mark.parametrize(
    ("outcome", "attempt"), [("retried", 2), ("retried", 3), ("snoozed", 1), ("snoozed", 2)]
)
def test_what_was_asked_for_needs_no_cause(outcome: str, attempt: int) -> None:
    asked = [hand_out(1, outcome=outcome), hand_out(3, attempt=attempt)]
    assert not judged(asked, settled(1.1)).unexplained
    assert not judged(asked, settled(1.1, 3.1)).unexplained


@pytest.mark.parametrize(("attempt", "delay_ms"), [(1, 0), (2, 2_030)])
def test_what_was_not_asked_for_needs_a_cause_though_another_was(
    attempt: int, delay_ms: int
) -> None:
    ask = hand_out(1, outcome="retried")._replace(delay_ms=delay_ms)
    assert why(judged([ask, hand_out(3, attempt=attempt)], settled(1.1))) == "nothing was wrong"


def test_what_was_read_before_the_move_leaves_what_was_asked_for_to_the_next() -> None:
    ask = hand_out(19.3, outcome="retried")
    read_before = hand_out(22.1, "two", outcome="retried")
    asked = hand_out(22.3, "two", attempt=2)
    found = judged([ask, read_before, asked], settled(21.7), STORE)
    assert found.excused == {"no quorum": 1}
    assert not found.unexplained


def test_what_was_read_before_a_snooze_leaves_what_was_asked_for_to_the_next() -> None:
    ask = hand_out(15.9, outcome="snoozed")._replace(delay_ms=800)
    read_before = hand_out(28.8, "two")._replace(due_ms=15_900)
    asked = hand_out(29.2, "two")._replace(due_ms=26_100)
    found = judged([ask, read_before, asked], settled(28.7), STORE)
    assert found.excused == {"no quorum": 1}
    assert not found.unexplained
    assert why(judged([ask, read_before], settled(28.7))) == "nothing was wrong"


def test_one_that_asks_asks_for_one() -> None:
    twice = [hand_out(1, outcome="retried"), hand_out(3, attempt=2)]
    assert why(judged([*twice, hand_out(15)], settled(1.1, 3.1))) == "nothing was wrong"
    found = judged([*twice, hand_out(20)], settled(1.1), KILLED)
    assert why(found) == "killed: it came again to the one that died"


def test_what_asks_and_was_never_stored_needs_a_cause_as_any() -> None:
    twice = [hand_out(9.9, outcome="retried"), hand_out(19.9, "two")]
    assert why(judged(twice, {})) == "nothing was wrong"
    assert judged(twice, {}, KILLED).excused == {"killed": 1}


def test_what_was_stored_after_the_second_had_begun_has_not_asked_for_it() -> None:
    twice = [hand_out(9.9, outcome="retried"), hand_out(10.2, "two")]
    assert why(judged(twice, settled(10.3), STORE))


def asked_back(
    ask: dict[str, object] | None = None, again: dict[str, object] | None = None
) -> Repeats:
    """A retry in 250 ms of which its consumer hears only after the message has come again."""
    first = hand_out(11, outcome="retried")._replace(delay_ms=250)
    second = hand_out(11.39, "two")._replace(due_ms=11_252, attempt=2)
    both = [first._replace(**ask or {}), second._replace(**again or {})]
    when = settled(11.5, consumer=both[0].consumer)
    found = judged(both, when, STORE)
    assert not found.excused
    return found


CLAIM = {"consumer": "caller-1", "due_ms": 21_000}


@pytest.mark.parametrize(
    ("ask", "again"),
    [
        ({}, {}),
        ({}, {"consumer": "one"}),
        ({"outcome": "snoozed"}, {"attempt": 1}),
        (CLAIM, {}),
        (CLAIM, {"consumer": "caller-2", "due_ms": 21_300}),
    ],
)
def test_what_comes_as_it_was_asked_for_was_stored_before_anybody_knew_it(
    ask: dict[str, object], again: dict[str, object]
) -> None:
    assert not asked_back(ask, again).unexplained


@pytest.mark.parametrize(
    ("ask", "again"),
    [
        ({}, {"due_ms": 0}),
        ({}, {"due_ms": 11_200}),
        ({}, {"attempt": 1}),
        ({"outcome": "acked"}, {}),
        ({"outcome": "snoozed"}, {}),
        # Of a claim's row nobody knows what it was due before.
        ({}, {"consumer": "caller-1", "due_ms": 21_300}),
        (CLAIM, {"began_us": 11_200_000}),
    ],
)
def test_what_comes_otherwise_than_it_was_asked_for_was_in_two_hands(
    ask: dict[str, object], again: dict[str, object]
) -> None:
    assert asked_back(ask, again).unexplained


def test_what_was_stored_before_its_asker_knew_has_asked_for_one_as_any() -> None:
    ask = hand_out(1, outcome="retried")._replace(delay_ms=250)
    again = hand_out(1.39, "two")._replace(due_ms=1_252, attempt=2)
    assert why(judged([ask, again, hand_out(12, "three")], settled(1.5))) == "nothing was wrong"


def test_a_claim_that_is_over_was_not_asked_for() -> None:
    ask = hand_out(1, "caller-1", outcome="retried")._replace(due_ms=11_000, delay_ms=250)
    assert why(judged([ask, hand_out(11.1, "two")._replace(due_ms=11_000, attempt=2)], {}))


@pytest.mark.parametrize(
    ("began_s", "trouble", "share"),
    [(9, KILLED, 1), (0.1, KILLED, 1), (-0.1, KILLED, 0.75), (9, FROZEN, 0.75)],
)
def test_what_one_had_in_hand_when_it_was_killed_need_not_be_known(
    began_s: float, trouble: Trouble, share: float
) -> None:
    rest = [hand_out(9, "two", body) for body in "bcd"]
    when = {key: at for body in "bcd" for key, at in settled(9.1, body=body).items()}
    assert repeats.known_share([hand_out(began_s), *rest], when, [trouble]) == share
    assert not repeats.known_share(rest, {}, [trouble])


def test_what_was_parked_may_have_come_due_without_being_asked_for() -> None:
    ask = hand_out(1, outcome="retried")._replace(ended_us=10 * S, delay_ms=250)
    assert why(judged([ask, hand_out(12, "two")._replace(due_ms=12_000, attempt=2)], {}))


def test_a_consumer_s_second_outcome_is_not_its_first() -> None:
    firsts = [hand_out(1, outcome="retried"), hand_out(9.9, attempt=2)]
    found = judged([*firsts, hand_out(19.9, "two")], settled(1.1), KILLED)
    assert found.excused == {"killed": 1}
    again = judged([*firsts, hand_out(19.9, "two")], settled(1.1, 9.95), KILLED)
    assert why(again).endswith("settled before")


@pytest.mark.parametrize(
    ("stored_s", "is_late"), [(None, True), (1.5, False), (2.05, False), (2.2, True)]
)
def test_what_is_to_come_again_may_be_passed_until_it_is_stored_where_that_is_after_its_due(
    stored_s: float | None, *, is_late: bool
) -> None:
    ask = hand_out(1, outcome="retried")._replace(delay_ms=1_000)
    when = {} if stored_s is None else settled(stored_s)
    assert repeats.was_stored_late(ask, hand_out(2.1, body="b"), when) is is_late


@pytest.mark.parametrize(("trouble", "is_in_two_hands"), [(STORE, True), (KILLED, False)])
def test_what_comes_again_was_in_two_hands_unless_the_first_is_dead(
    trouble: Trouble, *, is_in_two_hands: bool
) -> None:
    ask, again = hand_out(9.9, outcome="retried"), hand_out(19.9, "two", outcome="retried")
    found = judged([ask, again, hand_out(31)], settled(20, consumer="two"), trouble)
    assert sum(found.excused.values()) == 1
    assert found.again == [again] * is_in_two_hands


def put_off_at_once(*copies: HandOut, first_s: float | None = 21.24, last_s: float = 0) -> int:
    """How many of these copies are explained, where two have put a message off.

    As once with all nodes cut off: each had looked before it knew of what the other wrote.

    Args:
        first_s: When the first had its row stored.
        last_s: How long the second's handler took.
    """
    first = hand_out(10.86, outcome="retried")._replace(delay_ms=1_000)
    again = hand_out(21.138, "two", outcome="retried")._replace(delay_ms=1_000, due_ms=10_860)
    again = again._replace(ended_us=again.ended_us + round(last_s * S))
    when = {} if first_s is None else settled(first_s)
    when |= settled(21.242 + last_s, *(one.began_us / S + 0.01 for one in copies), consumer="two")
    found = judged([first, again, *copies], when, STORE)
    assert found.excused == {"no quorum": 1}
    unexplained = [one for one, _ in found.unexplained]
    assert unexplained == list(copies[len(copies) - len(unexplained) :])
    return len(copies) - len(unexplained)


def copy(at_s: float, attempt: int = 2, outcome: str = "acked") -> HandOut:
    return hand_out(at_s, "two", attempt=attempt, outcome=outcome)


def test_what_two_have_put_off_at_once_comes_twice_and_no_more() -> None:
    assert put_off_at_once(copy(22.189), copy(22.202), copy(22.4)) == 2


def test_copies_that_are_put_off_are_two_still() -> None:
    again = [copy(23.3, 3), copy(23.5, 3), copy(23.7, 3)]
    assert put_off_at_once(copy(22.189, outcome="retried"), copy(22.202), *again) == 3
    both = [copy(22.189, outcome="retried"), copy(22.202, outcome="retried")]
    assert put_off_at_once(*both, *again) == 4


@pytest.mark.parametrize(("first_s", "last_s"), [(None, 0), (21.13, 0), (21.24, 1), (22, 30)])
def test_what_one_has_put_off_before_the_other_looked_comes_once(
    first_s: float | None, last_s: float
) -> None:
    copies = copy(22.189 + last_s), copy(22.202 + last_s)
    assert put_off_at_once(*copies, first_s=first_s, last_s=last_s) == 1


def test_one_of_two_rows_does_not_come_twice() -> None:
    first = copy(22.189)
    assert put_off_at_once(first, first._replace(began_us=23 * S, ended_us=23 * S)) == 1


def test_what_has_been_tried_since_is_not_the_other_row() -> None:
    assert put_off_at_once(copy(22.189), copy(622, attempt=9)) == 1


def test_another_consumer_s_death_excuses_nothing() -> None:
    assert why(judged([hand_out(9.9, "two"), hand_out(19.9, "three")], {}, KILLED))


def test_what_began_after_a_trouble_is_not_excused_by_it() -> None:
    assert why(judged([hand_out(31), hand_out(41, "two")], {}, STORE))


def test_one_excuse_is_needed_for_each_of_several() -> None:
    thrice = [hand_out(9.9), hand_out(19.9, "two"), hand_out(30, "three")]
    found = judged(thrice, settled(19.95, consumer="two"), KILLED)
    assert found.excused == {"killed": 1}
    assert [one.consumer for one, _ in found.unexplained] == ["three"]


def test_a_thawed_consumer_may_hand_out_what_its_threads_had_in_hand_and_no_more() -> None:
    bodies = "abc"
    firsts = [hand_out(15, "two", body) for body in bodies]
    again = [hand_out(25.1, "one", body, number) for number, body in enumerate(bodies)]
    when: Times = {}
    for body in bodies:
        when |= settled(15.1, consumer="two", body=body)
    found = judged([*firsts, *again], when, FROZEN)
    assert found.excused == {"frozen": 2}
    ((_, reason),) = found.unexplained
    assert "2 threads" in reason


def test_a_thawed_consumer_may_not_go_on_with_what_others_have_settled() -> None:
    found = judged(
        [hand_out(15, "two"), hand_out(26, "one")], settled(15.1, consumer="two"), FROZEN
    )
    assert why(found)


def test_a_zombie_is_one_whose_delete_was_missed_and_whose_tombstone_is_gone() -> None:
    assert judged([hand_out(11), hand_out(35)], settled(12), ZOMBIES).excused == {"zombies": 1}


@pytest.mark.parametrize(
    ("settled_s", "again_s", "reason"),
    [(12, 21, "tombstone"), (7.9, 40, "not deleted then"), (31, 45, "not deleted then")],
)
def test_what_else_comes_again_is_no_zombie(settled_s: float, again_s: float, reason: str) -> None:
    found = judged([hand_out(7), hand_out(again_s)], settled(settled_s), ZOMBIES)
    assert reason in why(found)


def test_in_flight_are_those_begun_and_not_settled_within_a_second() -> None:
    one_each = [hand_out(9.5, body=body) for body in "abcd"]
    when = settled(9.6, body="a") | settled(11, body="b") | settled(10.1, body="c")
    found = judged(one_each, when, STORE)
    assert found.in_flight == {"no quorum": 2}


def test_outcomes_are_read_up_to_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "one.settled"
    lines = [json.dumps([5, ["x", "y"]]), json.dumps([6, ["x"]]), '[7, ["z']
    path.write_text("\n".join(lines))
    there = repeats.read_times([path, tmp_path / "two.settled"])
    assert there == {("one", "x"): [5, 6], ("one", "y"): [5]}
