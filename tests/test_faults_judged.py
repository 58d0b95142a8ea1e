"""What plays of real faults judge by, without a node: how long messages waited, what is lost."""

from __future__ import annotations

import struct

import pytest
from faults import waits
from faults.proxy import BATCH, EXECUTE, kind_of
from faults.refusals import refusals
from proofs.courses import Course
from proofs.judge import HandOut, Put

S = 1_000_000
TEXTS = {
    b"select": "SELECT body FROM messages WHERE queue = ?",
    b"insert": "INSERT INTO messages (queue) VALUES (?)",
    b"lock": "UPDATE messages SET lock = ? WHERE queue = ? IF lock = ?",
}


def put(body: str, due_s: float, group: str | None = None) -> Put:
    return Put(body, round(due_s * 1_000), 0, 0, group)


def hand_out(body: str, at_s: float, for_s: float = 0) -> HandOut:
    began_us = round(at_s * S)
    return HandOut(0, body, body, 0, began_us, began_us + round(for_s * S), 1)


def course(body: str) -> Course:
    return Course.LASTS if body == "lasts" else Course.PLAIN


def waited_s(puts: list[Put], *hand_outs: HandOut) -> dict[str, float]:
    return {one.put.body: one.us / S for one in waits.waits(puts, hand_outs, course)}


def test_a_message_waits_from_its_due_to_its_first_delivery() -> None:
    assert waited_s([put("a", 1)], hand_out("a", 4), hand_out("a", 14)) == {"a": 3}


def test_one_of_a_group_waits_from_when_one_that_takes_long_lets_it() -> None:
    puts = [put("lasts", 1, "g"), put("a", 2, "g"), put("b", 2)]
    found = waited_s(puts, hand_out("lasts", 1, for_s=4), hand_out("a", 6), hand_out("b", 6))
    assert found == {"lasts": 0, "a": 1, "b": 4}


def test_what_is_only_behind_others_of_its_group_has_waited_from_its_due() -> None:
    puts = [put("a", 1, "g"), put("b", 2, "g")]
    assert waited_s(puts, hand_out("a", 5), hand_out("b", 6)) == {"a": 4, "b": 4}


def late(*at_s: float, for_s: float = 3) -> list[waits.Wait]:
    puts = [put(f"{one}", one - for_s) for one in at_s]
    return waits.waits(puts, [hand_out(f"{one}", one) for one in at_s], course)


def test_deliveries_have_resumed_when_nothing_is_late_for_a_while() -> None:
    assert waits.resumed_s(late(5, 12, 41, 72), round(10 * S)) == 31
    assert waits.resumed_s(late(5, 41), round(10 * S)) == 0
    assert waits.resumed_s(late(12, for_s=1.9), round(10 * S)) == 0


def test_what_is_held_up_later_counts_too() -> None:
    assert waits.back_s(late(5, 12, 72, for_s=6), round(10 * S)) == 62
    assert waits.back_s(late(12, for_s=4), round(10 * S)) == 0


def executed(statement: bytes) -> bytes:
    return struct.pack(">H", len(statement)) + statement


def batched(type_: int, statement: bytes) -> bytes:
    return struct.pack(">BHB", type_, 1, 1) + executed(statement)


@pytest.mark.parametrize(
    ("opcode", "body", "kind"),
    [
        (EXECUTE, executed(b"select"), None),
        (EXECUTE, executed(b"insert"), "write"),
        (EXECUTE, executed(b"lock"), "lwt"),
        (BATCH, batched(0, b"insert"), "move"),
        (BATCH, batched(1, b"insert"), "write"),
    ],
)
def test_a_logged_batch_is_a_move_and_an_answer_of_its_own_kind(
    opcode: int, body: bytes, kind: str | None
) -> None:
    assert kind_of(opcode, body, TEXTS) == kind


def said(at_s: int, text: str) -> str:
    return f"2026-11-22 20:49:{at_s:02},024 shardq.{text}"


def refused(at_s: int, purpose: str) -> str:
    return said(at_s, f"stores.cassandra.rows {purpose} of queue q refused, read in parts")


def test_a_poll_is_refused_only_soon_after_a_lane_has_changed_hands() -> None:
    taken = [said(0, "engine queue q: reading lanes [0]"), refused(9, "poll"), refused(11, "poll")]
    ended = [said(3, "engine queue q: reading lanes [1]"), refused(20, "sweep 5 s")]
    told = refusals(["\n".join(taken), "\n".join(ended)])
    assert told.counts == {"poll": 2, "sweep 5 s": 1}
    assert told.polls == []
    assert told.calm_s == 7
    late = refusals(["\n".join([*taken, *ended, refused(14, "ahead"), refused(15, "groups")])])
    assert late.polls == [refused(14, "ahead")]


def test_a_lane_of_two_readers_has_not_changed_hands_yet() -> None:
    one = [
        said(0, "engine queue q: reading lanes [0, 1]"),
        said(21, "engine queue q: reading lanes [1]"),
    ]
    other = [said(1, "engine queue q: reading lanes [0]"), refused(15, "poll"), refused(40, "poll")]
    told = refusals(["\n".join(one), "\n".join(other)])
    assert told.polls == [refused(40, "poll")]
    assert told.calm_s == 9


def test_a_step_that_failed_is_told() -> None:
    told = refusals([said(1, "engine queue q: StoreUnavailable: away; trying again in 1 s")])
    assert len(told.failed) == 1
    assert not told.counts
