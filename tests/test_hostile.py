"""Hostile input through the public library: refused in a sentence, or kept exactly as it is."""

from __future__ import annotations

import string
from contextlib import suppress
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from examples import bounded
from hostile import (
    INJECTIONS,
    hostile_text,
    hostile_value,
    is_clear,
    is_sayable,
    refusals,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from shardq import Consumer
from shardq.errors import BadReceipt, ReceiptError, ShardqError
from shardq.model.receipt import Receipt, Signer
from shardq.model.settings import CHOICES
from shardq.model.shard import Position, Shard
from shardq.model.times import due_ms, duration_ms
from shardq.testing import Stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardq import Queue
    from shardq.model.message import Row

VERBS = ["ack", "retry", "snooze", "extend", "bury", "cancel"]
BASE64 = string.ascii_letters + string.digits + "-_"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage() as made:
        yield made


# Receipts -----------------------------------------------------------------------------------------


class Victims:
    """A queue with messages in every state, beside other queues; receipts of these and others."""

    def __init__(self, stage: Stage) -> None:
        db = stage.connect()
        self.queue = db.queue("victim", bands=2)
        self.others = [db.queue("other"), self.queue.dead]
        for n in range(6):
            self.queue.put(f"{n}", priority=n % 2, group="g" if n > 3 else None)
        self.queue.put("far", delay="400d")
        self.queue.bury(self.queue.put("dead"))
        self.queue.receive(3, wait="1s")
        self.own = [message.receipt for message in self.queue.peek(100)]
        self.foreign = [
            self.others[0].put("another queue").receipt,
            *(message.receipt for message in self.queue.dead.peek()),
        ]
        with Stage() as elsewhere:
            self.foreign.append(elsewhere.connect().queue("victim").put("same name").receipt)

    def rows(self) -> set[Row]:
        queues = (self.queue, *self.others)
        return {row for queue in queues for page in queue._rows() for row in page}


@pytest.fixture(scope="module")
def victims(stage: Stage) -> Victims:
    return Victims(stage)


def settle(queue: Queue, verb: str, token: Any) -> object:
    more = {"snooze": ("1s",), "extend": ("5s",)}
    return getattr(queue, verb)(token, *more.get(verb, ()))


def bent(token: str, data: st.DataObject) -> Any:
    """A receipt with one thing wrong about it."""
    place = data.draw(st.integers(0, len(token) - 1))
    flipped = bytearray(token.encode())
    flipped[place] ^= 1 << data.draw(st.integers(0, 7))
    return data.draw(
        st.sampled_from(
            [
                token[:place],
                token[place:],
                flipped.decode("latin-1"),
                token[:place] + data.draw(st.sampled_from(BASE64)) + token[place + 1 :],
                token * 2,
                token.swapcase(),
                token.encode(),
                *(token + end for end in ("=", " ", "\n", "\0", "A", "====", "A" * 1_000_000)),
            ]
        )
    )


@bounded(150)
@given(data=st.data(), verb=st.sampled_from(VERBS))
def test_no_forged_receipt_touches_a_message(
    victims: Victims, data: st.DataObject, verb: str
) -> None:
    queue, own = victims.queue, data.draw(st.sampled_from(victims.own))
    secret, layout = queue._home.register._record.secret, queue._home.register.layout
    receipt = queue._home.register.signer.read(own)

    def signed(name: str, key: bytes) -> str:
        return Signer(name, key, layout).sign(receipt)

    kind = data.draw(st.sampled_from(["any", "chars", "foreign", "bent", "secret", "name"]))
    token: Any = {
        "any": lambda: data.draw(hostile_value),
        "chars": lambda: data.draw(st.text(BASE64, min_size=80, max_size=80)),
        "foreign": lambda: data.draw(st.sampled_from(victims.foreign)),
        "bent": lambda: bent(own, data),
        # Signed by somebody without the secret, or for a queue of another name.
        "secret": lambda: signed("victim", data.draw(st.binary())),
        "name": lambda: signed(data.draw(st.sampled_from(["other", "victim.dead", ""])), secret),
    }[kind]()
    # Bent by chance into what it was.
    assume(kind != "bent" or token != own)
    # Without a receipt `cancel` asks for one, or for a key.
    assume(verb != "cancel" or token is not None)
    before = victims.rows()
    with pytest.raises(BadReceipt) as caught:
        settle(queue, verb, token)
    assert is_clear(str(caught.value))
    assert victims.rows() == before


@bounded(80)
@given(
    verb=st.sampled_from(VERBS),
    lane=st.integers(0, (1 << 32) - 1),
    minute=st.integers(-(1 << 63), (1 << 63) - 1),
    due=st.integers(0, 1 << 47),
    row_id=st.binary(min_size=16, max_size=16),
    attempt=st.integers(0, (1 << 32) - 1),
    serial=st.integers(0, (1 << 24) - 1),
)
def test_a_receipt_of_nowhere_settles_nothing_though_it_is_signed(
    victims: Victims,
    verb: str,
    lane: int,
    minute: int,
    due: int,
    row_id: bytes,
    attempt: int,
    serial: int,
) -> None:
    queue = victims.queue
    position = Position(Shard("victim", minute, lane), due, row_id)
    token = queue._home.register.signer.sign(Receipt(position, attempt, serial))
    before = victims.rows()
    with suppress(ReceiptError):
        assert settle(queue, verb, token) is False
    assert victims.rows() == before


# Putting ------------------------------------------------------------------------------------------

ends = [datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999_999)]  # noqa: DTZ001
moments = st.one_of(
    st.datetimes(),
    st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-23, minutes=-59))])),
    st.sampled_from([*ends, *(end.replace(tzinfo=UTC) for end in ends)]),
)
MOMENT = (
    r"[0-9]{0,5}-?W?[0-9]{0,3}-?[0-9]{0,2}([T ][0-9]{0,2}(:?[0-9]{0,2}){0,2}(\.[0-9]{0,12})?)?"
    r"(Z|[+-][0-9]{2}(:?[0-9]{2})?)?"
)
PERIOD = r"P([0-9]{0,20}[.,]?[0-9]{0,3}[YMWD]){0,4}(T([0-9]{0,20}[.,]?[0-9]{0,3}[HMS]){0,4})?"
TIME_LIKE = [
    rf"\A{MOMENT}\Z",
    r"\A2[0-9]{3}-[01][0-9]-[0-3][0-9]T[0-2][0-9]:[0-5][0-9](Z|[+-][0-9]{2}(:?[0-9]{2})?)\Z",
    rf"\A{PERIOD}\Z",
    rf"\A({MOMENT}|{PERIOD})/({MOMENT}|{PERIOD})\Z",
    r"\A([0-9]{0,30}(\.[0-9]{0,30})?(ms|[smhdwy])?){0,3}\Z",
    # Digits of every script.
    r"\A(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}Z|P\d{1,3}D|\d{1,3}s)\Z",
]
times = st.one_of(
    hostile_value,
    moments,
    st.timedeltas(),
    st.text("0123456789-:.,+/TZPYMWDHSnowad ²٣", max_size=70),
    *map(st.from_regex, TIME_LIKE),
    st.sampled_from(["now", "8:", "P", "PT", "2027-01-01/2028-01-01", "24:00Z", "1e9s", "-1s"]),
)


def otherwise_read(text: str) -> int | None:
    """What Python's own reader, which knows fewer forms, makes of a moment."""
    try:
        return due_ms(datetime.fromisoformat(text))
    except ValueError:
        return None


@bounded(300)
@given(value=times)
def test_a_time_is_read_or_refused_in_a_sentence(value: Any) -> None:
    for read in (due_ms, duration_ms):
        with refusals():
            millis = read(value)
            assert type(millis) is int
            assert millis >= 0
            if read is due_ms and isinstance(value, str):
                assert abs(millis - (otherwise_read(value) or millis)) <= 1


messages = st.fixed_dictionaries(
    {"body": st.one_of(hostile_text, st.binary(max_size=50), hostile_value)},
    optional={
        "id": hostile_value,
        "group": hostile_value,
        "headers": st.one_of(st.dictionaries(hostile_text, hostile_text), hostile_value),
        "priority": st.one_of(st.integers(-1, 2), hostile_value),
        "delay": times,
        "due": times,
        "color": st.just("red"),
    },
)


@pytest.fixture(scope="module")
def mail(stage: Stage) -> Queue:
    return stage.connect().queue("mail", bands=2, history="1d")


@bounded(200)
@given(given=messages)
def test_a_message_comes_back_as_it_was_put_or_is_refused(mail: Queue, given: Any) -> None:
    refused = True
    with refusals():
        mail.put_many([given])
        refused = False
    found = [Message for page in mail._rows() for Message in page]
    if refused:
        assert found == []
        return
    [message] = mail.peek()
    body = given["body"]
    assert (message.text if type(body) is str else message.body) == body
    assert message.group == given.get("group")
    assert message.headers == (given.get("headers") or {})
    assert given.get("id") in (None, message.id)
    assert mail.cancel(message.receipt)


@bounded(100)
@given(value=st.one_of(hostile_value, st.lists(hostile_value, max_size=3)))
def test_whatever_is_put_in_bulk_is_put_or_refused(mail: Queue, value: Any) -> None:
    with refusals():
        mail.put_many(value)
    for message in mail.peek(100):
        assert mail.cancel(message.receipt)


# Steering -----------------------------------------------------------------------------------------


@bounded(80)
@given(
    name=st.one_of(
        hostile_value,
        st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}(\.dead)?\Z"),
        st.from_regex(r"[A-Za-z0-9._-]{95,110}(\.dead){0,2}\n?\Z"),
    )
)
def test_a_queue_has_the_name_it_was_given_or_none(name: Any) -> None:
    with Stage() as stage:
        db = stage.connect()
        made = None
        with refusals():
            made = db.queue(name)
        assert db.queues() == ([] if made is None else [name])
        if made is not None:
            with refusals():
                # A dead-letter queue has none of its own.
                made.bury(made.put("x"), "why")
                assert [one.text for one in made.dead.peek()] == ["x"]


OF_THE_CALL = {"self", "name", "create"}
"""What `Connection.queue` takes besides settings."""
settings_given = st.dictionaries(
    st.one_of(st.sampled_from(sorted(CHOICES)), hostile_text).filter(
        lambda name: name not in OF_THE_CALL
    ),
    st.one_of(st.integers(-1, 300), st.sampled_from(["1s", "1m", "99d", "100ms"]), hostile_value),
    max_size=4,
)


@bounded(100)
@given(first=settings_given, then=settings_given)
def test_settings_are_taken_whole_or_not_at_all(first: Any, then: Any) -> None:
    with Stage() as stage:
        db = stage.connect()
        with refusals():
            db.queue("mail", **first)
        queue = db.queue("mail")
        before = queue.settings
        altered = False
        with refusals():
            queue.alter(**then)
            altered = True
        assert altered or stage.connect().queue("mail").settings == before
        with refusals():
            db.queue("mail", **then)
        queue.put("x", delay="1ms")
        stage.clock.advance(0.001)
        [message] = queue.receive(wait="2s")
        assert message.text == "x"


@bounded(120)
@given(
    verb=st.sampled_from(
        ["receive", "peek", "forecast", "audit", "history", "redrive", "retry", "bury", "consume"]
    ),
    value=st.one_of(hostile_value, times),
    place=st.integers(0, 2),
)
def test_arguments_out_of_bounds_are_refused_in_a_sentence(
    mail: Queue, verb: str, value: Any, place: int
) -> None:
    option = ("threads", "prefetch", "deadline")[place]
    calls = {
        "receive": lambda: mail.receive(*[1, "2s", "0s"][:place], value),
        "peek": lambda: mail.peek(value),
        "forecast": lambda: mail.forecast(value),
        "audit": lambda: mail.audit(*["1h"][: place % 2], value),
        "history": lambda: list(mail.history(*[None, "1h"][:place], value)),
        "redrive": lambda: mail.redrive(value),
        "retry": lambda: mail.retry(mail.put("x", delay="1s"), value),
        "bury": lambda: mail.bury(mail.put("x", delay="1s"), value),
        "consume": lambda: Consumer(mail, print, **{option: value}),
    }
    # An hour's wait and a million threads are allowed, and not what is looked for.
    assume(verb != "receive" or place < 2)
    with refusals():
        calls[verb]()
    for queue in (mail, mail.dead):
        for message in queue.peek(1_000):
            queue.cancel(message)


@pytest.mark.parametrize("name", INJECTIONS)
def test_names_that_would_break_a_statement_are_refused_or_kept(name: str) -> None:
    with Stage() as stage:
        _go_through_life(stage, name)


def _go_through_life(stage: Stage, name: str) -> None:
    queue = stage.connect().queue("mail")
    try:
        queue.put(name, id=name, group=name, headers={name: name})
    except ShardqError:
        assert not is_sayable(name)
        return
    assert is_sayable(name)
    [message] = queue.receive(wait="1s")
    assert (message.id, message.text, message.group) == (name, name, name)
    assert message.headers == {name: name}
    queue.retry(message.receipt, "0s", reason=name)
    [message] = queue.receive(wait="1s")
    queue.bury(message.receipt, name)
    [dead] = queue.dead.peek()
    assert (dead.id, dead.headers["shardq-reason"]) == (name, name)
    assert queue.redrive() == 1
    queue.ack(*queue.receive(wait="1s"))
    assert stage.is_empty(queue)
