"""Messages, their rows and their receipts."""

from __future__ import annotations

import string
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardq.errors import BadBody, BadName, BadReceipt, StoreCorrupt
from shardq.model.ids import RowIds, text
from shardq.model.message import (
    BODY_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    SERIAL_MAX,
    Message,
    Row,
    body_bytes,
    contents,
    headers_json,
    moved,
    read_headers,
    revived,
)
from shardq.model.receipt import Receipt, Signer
from shardq.model.shard import Layout, Position, Shard

LAYOUT = Layout("mail", bands=3)
SECRET = bytes(range(32))
SIGNER = Signer("mail", SECRET, LAYOUT)
ALPHABET = set(string.ascii_letters + string.digits + "-_")

receipts = st.builds(
    Receipt,
    st.builds(
        Position,
        st.builds(Shard, st.just("mail"), st.integers(0, 1 << 40), st.integers(0, 4_095)),
        st.integers(0, 1 << 52),
        st.binary(min_size=16, max_size=16),
    ),
    st.integers(0, 10_000),
    st.integers(0, SERIAL_MAX),
)
receipts |= st.builds(
    replace,
    receipts,
    first=st.binary(min_size=16, max_size=16),
    key=st.sampled_from(["", "1::order-7", "2:60000:été"]),
)


def token_of(receipt: Receipt, signer: Signer = SIGNER) -> str:
    return signer.sign(receipt)


@given(receipts)
def test_a_receipt_reads_back_as_what_was_signed(receipt: Receipt) -> None:
    token = token_of(receipt)
    assert SIGNER.read(token) == receipt
    assert len(token) == 80 if receipt.first is None else len(token) >= 104
    assert set(token) <= ALPHABET


@given(receipts, st.data())
def test_a_receipt_with_any_bit_flipped_is_bad(receipt: Receipt, data: st.DataObject) -> None:
    token = token_of(receipt).encode()
    bit = data.draw(st.integers(0, len(token) * 8 - 1))
    flipped = bytearray(token)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadReceipt):
        SIGNER.read(bytes(flipped).decode("latin-1"))


@given(receipts, st.data())
def test_a_receipt_cut_or_padded_is_bad(receipt: Receipt, data: st.DataObject) -> None:
    token = token_of(receipt)
    cut = token[: data.draw(st.integers(0, len(token) - 1))]
    more = token + data.draw(st.text("=A \n-+/", min_size=1, max_size=9))
    for bad in (cut, more, " " + token, token + token):
        with pytest.raises(BadReceipt):
            SIGNER.read(bad)


@given(receipts)
def test_a_receipt_of_another_queue_or_secret_is_bad(receipt: Receipt) -> None:
    token = token_of(receipt)
    for foreign in (Signer("sms", SECRET, LAYOUT), Signer("mail", bytes(32), LAYOUT)):
        with pytest.raises(BadReceipt):
            foreign.read(token)


def test_a_queue_name_cannot_be_stretched_into_anothers_signature() -> None:
    receipt = Receipt(Position(Shard("mail", 1, 2), 3, bytes(16)), 1)
    longer = Signer("mail\0", SECRET, LAYOUT)
    assert token_of(receipt) != token_of(receipt, longer)


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("AgAA" * 25_000, "it has 100,000 characters, not 80; pass it on unchanged"),
        ("AgAA", "it has 4 characters, not 80"),
        ("A" * 80, r"^'A{76}\.\.\. is no receipt"),
        ("", "^'' is no receipt"),
        (b"A" * 80, "a message or its receipt is needed, not bytes"),
        (None, "a message or its receipt is needed, not NoneType"),
    ],
)
def test_what_has_not_the_size_of_a_receipt_is_told_by_its_size(token: object, said: str) -> None:
    with pytest.raises(BadReceipt, match=said):
        SIGNER.read(token)


def row_of(**given: object) -> Row:
    due_ms = 90_000
    return Row(LAYOUT.shard(due_ms, 4), due_ms, RowIds().next(1_000), b"hello")._replace(**given)


def test_a_moved_message_keeps_its_identity_order_and_age_under_a_fresh_row_id() -> None:
    row = row_of(group="g")
    there = row
    for step in range(1, 4):
        due_ms = 90_000 * (step + 1)
        fresh = RowIds().next(step * 1_000_000)
        there = moved(there, LAYOUT.shard(due_ms, 4), due_ms, fresh, attempt=step, claim=None)
        assert there.id == fresh
    assert there.message_id == row.message_id
    assert there.order == row.order
    assert there.entered_us == row.entered_us
    assert (there.attempt, there.body, there.group) == (3, b"hello", "g")


def test_a_message_moved_back_to_its_first_due_forgets_that_it_was_away() -> None:
    row = row_of()
    away = moved(row, row.shard, 95_000, RowIds().next(1), attempt=1, claim="somebody")
    back = moved(away, row.shard, 90_000, RowIds().next(2), attempt=1, claim=None)
    assert back.origin_ms is None
    assert back.claim is None
    assert back.order == row.order


def test_what_was_passed_on_is_late_from_its_own_due_until_it_is_moved_for_another_reason() -> None:
    row = row_of()

    def passed_on(one: Row, due_ms: int, **given: int) -> Row:
        shard, row_id = LAYOUT.shard(due_ms, 5), RowIds().next(due_ms)
        return moved(one, shard, due_ms, row_id, attempt=0, claim=None, **given)

    once = passed_on(row, 95_000, since_ms=row.wanted_ms)
    twice = passed_on(once, 97_000, since_ms=once.wanted_ms)
    assert (once.due_ms, once.wanted_ms) == (95_000, 90_000)
    assert (twice.due_ms, twice.since_ms, twice.wanted_ms) == (97_000, 90_000, 90_000)
    assert Message(twice, 0, SIGNER).due_ms == 90_000
    assert Message(twice, 0, SIGNER).due == Message(row, 0, SIGNER).due
    retried = passed_on(twice, 99_000)
    assert (retried.since_ms, retried.wanted_ms) == (None, 99_000)
    assert (retried.order, retried.message_id) == (row.order, row.message_id)
    assert passed_on(row, 90_000, since_ms=90_000).since_ms is None


def test_a_dead_message_that_is_put_back_is_late_from_its_new_due() -> None:
    dead = row_of(since_ms=60_000)
    assert revived(dead, LAYOUT, 95_000, RowIds().next(1), index=0).wanted_ms == 95_000


def test_a_name_is_the_messages_id_else_the_first_row_id_is() -> None:
    row = row_of()
    assert row.message_id == text(row.id)
    assert row_of(name="order-7").message_id == "order-7"


def test_a_message_shows_what_was_put() -> None:
    message = Message(row_of(headers='{"kind":"a"}', origin_ms=60_000, name="n"), 2, SIGNER)
    assert message.queue == "mail"
    assert message.text == "hello"
    assert message.headers == {"kind": "a"}
    assert message.due.isoformat() == "1970-01-01T00:01:30+00:00"
    assert message.first_due.isoformat() == "1970-01-01T00:01:00+00:00"
    assert (message.attempt, message.priority, message.group) == (2, 1, None)
    grouped = Message(row_of(group="g", priority=2), 0, SIGNER)
    assert (grouped.priority, grouped.group) == (2, "g")
    assert SIGNER.read(message.receipt) == Receipt(message._row.position, 2)
    assert message.id in repr(message)


@pytest.mark.parametrize("body", ["größe", b"gr\xff", bytearray(b"x"), memoryview(b"x")])
def test_a_body_is_bytes_or_text(body: object) -> None:
    assert isinstance(body_bytes(body), bytes)


def test_a_body_of_one_mebibyte_is_taken_and_one_byte_more_is_refused() -> None:
    assert len(body_bytes(bytes(BODY_BYTES_MAX))) == BODY_BYTES_MAX
    with pytest.raises(BadBody, match="1,048,577"):
        body_bytes(bytes(BODY_BYTES_MAX + 1))
    with pytest.raises(BadBody):
        body_bytes("ü" * BODY_BYTES_MAX)


@pytest.mark.parametrize(("text", "at"), [("\ud83d", 0), ("a\ude00", 1), ("\ud83d\ude00", 0)])
def test_half_a_surrogate_pair_is_no_text_and_told_where(text: str, at: int) -> None:
    with pytest.raises(BadBody, match=f"at character {at};"):
        body_bytes(text)


@pytest.mark.parametrize("body", [None, 5, {"a": 1}, ["a"], object()])
def test_any_other_body_is_refused(body: object) -> None:
    with pytest.raises(BadBody):
        body_bytes(body)


@pytest.mark.parametrize("letter", ["x", "é", "\U0001f600"])
def test_body_and_headers_have_one_bound_in_bytes_of_utf_8(letter: str) -> None:
    room = (MESSAGE_BYTES_MAX - 1_000 - len('{"k":""}')) // len(letter.encode())
    body, text = contents("b" * 1_000, {"k": letter * room})
    assert MESSAGE_BYTES_MAX - 4 < len(body) + len(text.encode()) <= MESSAGE_BYTES_MAX
    with pytest.raises(BadBody, match=r"with headers of 1,06.,... bytes is larger than 1,064,960"):
        contents("b" * 1_000, {"k": letter * (room + 1)})


@given(st.dictionaries(st.text(string.ascii_letters, min_size=1), st.text(max_size=20), max_size=5))
@example({"smile": "\U0001f600", "halves": "\ude00\ud83d"})
def test_headers_read_back_as_given(headers: dict[str, str]) -> None:
    row = Row(Shard("mail", 1, 2), 3, bytes(16), b"", headers_json(headers))
    assert read_headers(row) == headers


@pytest.mark.parametrize(
    ("headers", "error"),
    [
        ({"": "x"}, BadName),
        ({"a\n": "x"}, BadName),
        ({5: "x"}, BadName),
        ({"a": 5}, BadBody),
        ({"a": "\ud83d\ude00"}, BadBody),
        ({"shardq-reason": "mine"}, BadBody),
    ],
)
def test_headers_that_cannot_be_kept_are_refused(headers: dict, error: type[Exception]) -> None:
    with pytest.raises(error):
        headers_json(headers)


@pytest.mark.parametrize("headers", ["{bad", "5", "[]", '{"a": 1}', "[" * 100_000])
def test_damaged_headers_are_told_with_their_message(headers: str) -> None:
    row = Row(Shard("mail", 1, 2), 3, bytes(16), b"x", headers, name="order-7")
    with pytest.raises(StoreCorrupt, match=r"headers of message order-7 \(minute 1, lane 2\) is "):
        _ = Message(row, 1, SIGNER).headers
