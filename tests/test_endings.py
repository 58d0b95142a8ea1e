"""Each message ends as its course has to, after as many attempts as were made, and is counted."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING

import pytest
from proofs import endings
from proofs.courses import ATTEMPTS, Course, Deed, Outcome, course_of, deed_of
from proofs.endings import Endings, Letter
from proofs.judge import HandOut, Put
from proofs.repeats import Kind, Trouble

from shardq.inspection.audit import Balance

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proofs.repeats import Times

S = 1_000_000
KILLED = Trouble("killed", Kind.KILLED, 10 * S, 10 * S, "one")
STORE = Trouble("no quorum", Kind.STORE, 10 * S, 20 * S)
REASON = "out of attempts: it raised"


def body_of(course: Course) -> str:
    """The first of some bodies that goes a course."""
    return next(body for n in count() if course_of(body := f"body-{n}") is course)


class Story:
    """The deliveries of one message, due at 0, each stored at once."""

    def __init__(self, course: Course) -> None:
        self.body = body_of(course)
        self.hand_outs: list[HandOut] = []
        self.settled: Times = {}
        self.letters: list[Letter] = []

    def add(
        self, at_s: float, outcome: Outcome = Outcome.ACKED, attempt: int = 1, delay_ms: int = 0
    ) -> Story:
        at_us = round(at_s * S)
        one = HandOut(
            len(self.hand_outs),
            "id",
            self.body,
            0,
            at_us,
            at_us + 1_000,
            attempt,
            outcome,
            delay_ms,
            "one",
        )
        self.hand_outs.append(one)
        self.settled.setdefault(("one", "id"), []).append(at_us + 2_000)
        return self

    def dies(self, attempts: int, reason: str = REASON) -> Story:
        self.letters.append(Letter(self.body, attempts, reason))
        return self

    def judged(self, *troubles: Trouble) -> Endings:
        puts = [Put(self.body, 0, 0, 0)]
        return endings.judge(puts, self.hand_outs, self.letters, self.settled, troubles)


def is_right(found: Endings) -> bool:
    return not (found.wrong or found.unended or found.miscounted or found.hasty)


def whys(found: Endings) -> list[str]:
    return [why for _, why in found.wrong]


def poisoned(attempts: Iterable[int] = range(1, ATTEMPTS + 1)) -> Story:
    story = Story(Course.POISON)
    for at_s, attempt in enumerate(attempts, 1):
        story.add(at_s, Outcome.RETRIED, attempt)
    return story


# Courses ------------------------------------------------------------------------------------------


def test_a_few_of_all_bodies_go_each_course_and_most_none() -> None:
    bodies = [course_of(f"producer-1-{n}") for n in range(400)]
    assert set(bodies) == set(Course)
    assert bodies.count(Course.PLAIN) > 300


def test_what_fails_asks_once_and_what_snoozes_only_while_it_is_fresh() -> None:
    assert deed_of(Course.FAILS, 1, 0).outcome is Outcome.RETRIED
    assert deed_of(Course.FAILS, 2, 0) == Deed()
    assert deed_of(Course.SNOOZES, 1, 0).outcome is Outcome.SNOOZED
    assert deed_of(Course.SNOOZES, 1, 60_000) == Deed()


def test_poison_asks_at_each_attempt_and_backs_off_by_twice_as_much() -> None:
    deeds = [deed_of(Course.POISON, attempt, 0) for attempt in range(1, ATTEMPTS + 1)]
    assert {deed.outcome for deed in deeds} == {Outcome.RETRIED}
    assert [deed.delay_ms for deed in deeds] == [250, 500, 1_000, 2_000, 4_000]


# Attempts -----------------------------------------------------------------------------------------


def test_a_retry_is_the_next_attempt_and_a_snooze_the_same() -> None:
    failed = Story(Course.FAILS).add(1, Outcome.RETRIED).add(3, attempt=2)
    assert is_right(failed.judged())
    put_off = Story(Course.SNOOZES).add(1, Outcome.SNOOZED).add(3)
    assert is_right(put_off.judged())


@pytest.mark.parametrize(
    ("outcome", "attempt", "expected"),
    [(Outcome.RETRIED, 1, "2"), (Outcome.RETRIED, 3, "2"), (Outcome.SNOOZED, 2, "1")],
)
def test_an_attempt_that_was_not_counted_or_was_twice_is_found(
    outcome: Outcome, attempt: int, expected: str
) -> None:
    found = Story(Course.PLAIN).add(1, outcome).add(3, attempt=attempt).judged()
    assert [(one.attempt, must_be) for one, must_be in found.miscounted] == [(attempt, expected)]


def test_a_first_delivery_that_is_not_the_first_attempt_is_found() -> None:
    assert Story(Course.PLAIN).add(1, attempt=2).judged().miscounted


def test_an_attempt_may_be_spent_unseen_in_a_trouble_that_the_message_met() -> None:
    assert not Story(Course.PLAIN).add(12, attempt=2).judged(KILLED).miscounted
    assert Story(Course.PLAIN).add(12, attempt=3).judged(KILLED).miscounted
    # Two leases may have lapsed in it.
    assert not Story(Course.PLAIN).add(12, attempt=3).judged(STORE).miscounted
    assert Story(Course.PLAIN).add(12, attempt=4).judged(STORE).miscounted


def test_a_trouble_before_or_after_excuses_no_attempt() -> None:
    assert Story(Course.PLAIN).add(9, attempt=2).judged(STORE).miscounted
    late = Story(Course.FAILS).add(21, Outcome.RETRIED).add(23, attempt=3)
    assert late.judged(STORE).miscounted


def test_what_comes_again_unasked_may_be_counted_or_not() -> None:
    for attempt in (1, 2):
        assert not Story(Course.PLAIN).add(1).add(12, attempt=attempt).judged().miscounted
    assert Story(Course.PLAIN).add(1).add(12, attempt=3).judged().miscounted


def test_what_comes_sooner_than_it_was_asked_to_is_found() -> None:
    story = Story(Course.FAILS).add(1, Outcome.RETRIED, delay_ms=1_000).add(1.982, attempt=2)
    assert is_right(story.judged())
    story = Story(Course.FAILS).add(1, Outcome.RETRIED, delay_ms=1_000).add(1.980, attempt=2)
    assert len(story.judged().hasty) == 1


def test_what_has_come_before_its_asker_knew_that_it_is_stored_does_not_count_once_more() -> None:
    story = Story(Course.FAILS).add(1, Outcome.RETRIED, delay_ms=250).add(1.4, attempt=2)
    story.hand_outs[1] = story.hand_outs[1]._replace(due_ms=1_251)
    story.settled = {("one", "id"): [2 * S]}
    assert is_right(story.judged())
    # Again, asked for by none: the second may have been counted or not.
    assert is_right(story.add(3, attempt=3).judged())


def test_what_met_a_store_in_trouble_may_be_there_twice_each_with_its_attempts() -> None:
    story = Story(Course.POISON).add(9, Outcome.RETRIED, 1, delay_ms=500)
    story.add(21, Outcome.RETRIED, 2, delay_ms=1_000).add(21.5, Outcome.RETRIED, 1)
    met, missed = story.judged(STORE), story.judged(KILLED)
    assert (met.miscounted, met.hasty) == ([], [])
    assert (len(missed.miscounted), len(missed.hasty)) == (1, 1)


# Ends ---------------------------------------------------------------------------------------------


def test_what_was_handed_out_and_neither_acked_nor_dead_is_found() -> None:
    assert is_right(Story(Course.PLAIN).add(1).judged())
    assert Story(Course.FAILS).add(1, Outcome.RETRIED).judged().unended
    assert poisoned().judged().unended


def test_the_buried_and_the_poisoned_are_dead_and_nothing_else_is() -> None:
    assert is_right(Story(Course.BURIED).add(1, Outcome.BURIED).dies(1, "asked").judged())
    assert is_right(poisoned().dies(ATTEMPTS).judged())
    found = Story(Course.PLAIN).add(1).dies(1).judged()
    assert whys(found) == [f"is dead, though its course PLAIN is not: {REASON}"]


def test_what_is_dead_and_was_acked_as_well_is_found() -> None:
    found = Story(Course.BURIED).add(1, Outcome.BURIED).add(2).dies(1).judged()
    assert whys(found) == ["was acked, though its course BURIED is deadly"]


def test_what_is_dead_and_was_never_delivered_is_found() -> None:
    assert whys(Story(Course.BURIED).dies(1).judged()) == ["is dead, and was never delivered"]


def test_what_is_dead_twice_is_found_unless_it_was_buried_twice() -> None:
    story = Story(Course.BURIED).add(1, Outcome.BURIED).dies(1).dies(1)
    assert whys(story.judged()) == ["is dead 2 times"]
    assert not story.add(12, Outcome.BURIED).judged(KILLED).wrong


def test_a_trouble_after_the_end_excuses_no_death() -> None:
    story = Story(Course.BURIED).add(1, Outcome.BURIED).dies(1).dies(1)
    assert not story.judged(STORE._replace(from_us=S)).wrong
    assert whys(story.judged(STORE)) == ["is dead 2 times"]


@pytest.mark.parametrize("attempts", [1, ATTEMPTS - 1, ATTEMPTS + 1])
def test_poison_that_died_after_another_number_of_attempts_is_found(attempts: int) -> None:
    assert whys(poisoned().dies(attempts).judged()) == [
        f"died after {attempts} attempts, not after {ATTEMPTS}"
    ]


def test_poison_that_was_delivered_too_seldom_is_found() -> None:
    seldom = poisoned([1, 2, 3]).dies(ATTEMPTS)
    assert whys(seldom.judged()) == ["died after the attempts [1, 2, 3] alone"]
    assert not seldom.judged(STORE).wrong


def test_a_queue_whose_handlers_only_ack_has_no_courses() -> None:
    story = Story(Course.BURIED).add(1)
    puts = [Put(story.body, 0, 0, 0)]
    found = endings.judge(puts, story.hand_outs, [], story.settled, [], endings.plain)
    assert is_right(found)


# The count ----------------------------------------------------------------------------------------

ENDED = Endings(acked={"a", "b", "c"}, dead={"d"})


def test_what_was_put_is_what_ended_and_what_is_left() -> None:
    assert not endings.uneven(ENDED, put=4, recovered=0, left=0)
    assert not endings.uneven(ENDED, put=4, recovered=1, left=1)
    assert endings.uneven(ENDED, put=5, recovered=0, left=0)
    assert endings.uneven(ENDED, put=4, recovered=0, left=1)


def test_books_that_say_what_the_files_say_are_right() -> None:
    books = Balance(put=4, acked=3, dead=1)
    assert not endings.misbooked(ENDED, books, put=4, recovered=0)
    assert not endings.misbooked(ENDED, books, put=3, recovered=1)


@pytest.mark.parametrize(
    "books",
    [
        Balance(put=4, acked=4),
        Balance(put=4, acked=2, dead=2),
        Balance(put=3, acked=2, dead=1),
        Balance(put=5, acked=4, dead=1),
        Balance(put=4, acked=2, dead=1, waiting=1),
        Balance(put=3, acked=2, dead=1, unrecorded=1),
    ],
)
def test_books_that_say_otherwise_are_found(books: Balance) -> None:
    assert endings.misbooked(ENDED, books, put=4, recovered=0)


def test_a_put_that_a_killed_producer_did_not_record_is_one_that_it_did_not_write_down() -> None:
    books = Balance(put=3, acked=2, dead=1, unrecorded=1)
    assert not endings.misbooked(ENDED, books, put=3, recovered=1)
