"""What a name stands for, and why a row may not begin: by its row and what is there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from shardq.errors import StoreCorrupt
from shardq.model import ids
from shardq.model.key import MessageKey
from shardq.model.message import Row
from shardq.model.shard import Position, Shard
from shardq.records import keyrow
from shardq.records.keyrow import Before, Does, KeyRow
from shardq.records.standing import Is, StartRefusal, View, judge, refusal_of

NOW_US = 1_780_000_000_000_000
NOW_MS = NOW_US // 1_000
PATIENCE_MS = 4_000
FIRST = ids.fixed(NOW_US - 60_000_000, "first")


def _place(seconds: float, *, dead: bool = False) -> Position:
    queue = "mail.dead" if dead else "mail"
    due_ms = NOW_MS + 60_000
    made = ids.fixed(NOW_US + round(seconds * 1e6), "row")
    return Position(Shard(queue, due_ms // 60_000, 0), due_ms, made)


def _key(**given: object) -> KeyRow:
    return replace(
        KeyRow("mail", "a", "live", "state", FIRST, 2, does=Does.WAITING, place=_place(-9)),
        **given,
    )


def _at(place: Position, claim: str | None = None) -> Row:
    return Row(*place, b"", first=FIRST, claim=claim, key=MessageKey("a", 2).text())


FRESH, OLD, MOVED = _place(-1), _place(-9), _place(-8)
DEAD = _place(-7, dead=True)
BEFORE = _place(-30)
VIEW = View(NOW_US, patience_ms=PATIENCE_MS)
BEGUN = {"does": Does.BEGUN}
REPLACES = {"before": Before(1, BEFORE)}


@pytest.mark.parametrize(
    ("key", "there", "state"),
    [
        (KeyRow("mail", "a"), [], Is.FREE),
        (KeyRow("mail", "a", "free", "x", until_ms=NOW_MS + 1), [], Is.HELD),
        (KeyRow("mail", "a", "free", "x", until_ms=NOW_MS), [], Is.FREE),
        (_key(place=FRESH), [], Is.PENDING),
        (_key(), [], Is.ENDED),
        (_key(), [OLD], Is.WAITING),
        (_key(**BEGUN), [OLD], Is.RUNNING),
        (_key(**BEGUN), [], Is.ENDED),
        (_key(**BEGUN, place=FRESH), [], Is.ENDED),
        (_key(at=MOVED), [MOVED], Is.WAITING),
        (_key(at=MOVED), [], Is.ENDED),
        (_key(at=FRESH, place=FRESH), [], Is.ENDED),
        (_key(**BEGUN, at=MOVED), [MOVED], Is.WAITING),
        (_key(**BEGUN, at=MOVED), [OLD, MOVED], Is.WAITING),
        (_key(**BEGUN, place=MOVED, at=MOVED), [MOVED], Is.RUNNING),
        (_key(**BEGUN, at=DEAD), [DEAD], Is.DEAD),
        (_key(**BEGUN, at=DEAD), [OLD, DEAD], Is.DEAD),
        (_key(**BEGUN, at=DEAD), [], Is.ENDED),
        (_key(**BEGUN, at=DEAD), [OLD], Is.ENDED),
        (_key(**REPLACES, place=FRESH), [BEFORE], Is.PENDING),
        (_key(**REPLACES, place=FRESH), [FRESH, BEFORE], Is.WAITING),
        (_key(**REPLACES), [BEFORE], Is.WAITING),
        (_key(**REPLACES), [], Is.ENDED),
        (_key(**REPLACES, at=MOVED), [BEFORE], Is.ENDED),
        (_key(**REPLACES, **BEGUN), [BEFORE], Is.ENDED),
    ],
)
def test_a_name_is_judged_by_its_row_and_by_what_is_there(
    key: KeyRow, there: list[Position], state: Is
) -> None:
    judged = judge(key, {place: _at(place) for place in there}, VIEW)
    assert judged.state is state


@pytest.mark.parametrize(
    ("generation", "key", "there", "refusal"),
    [
        (2, KeyRow("mail", "a"), [], StartRefusal.OVER),
        (2, _key(first=ids.fixed(NOW_US, "other")), [OLD], StartRefusal.OVER),
        (3, _key(), [OLD], StartRefusal.LATER),
        (2, _key(), [OLD], StartRefusal.AGAIN),
        (2, _key(is_doomed=True, **BEGUN), [OLD], StartRefusal.CANCELLED),
        (1, _key(), [OLD], StartRefusal.COPY),
        (1, _key(**REPLACES, place=FRESH), [], StartRefusal.LATER),
        (1, _key(**REPLACES), [], StartRefusal.STRANDED),
        (1, _key(**REPLACES, place=FRESH), [FRESH], StartRefusal.COPY),
        (1, _key(**REPLACES), [OLD], StartRefusal.REPLACED),
        (1, _key(**REPLACES, at=MOVED), [], StartRefusal.REPLACED),
        (1, _key(**REPLACES, **BEGUN), [], StartRefusal.COPY),
        (1, _key(generation=3, before=Before(2, BEFORE)), [], StartRefusal.COPY),
    ],
)
def test_why_a_row_may_not_begin_follows_from_its_generation_and_what_is_there(
    generation: int, key: KeyRow, there: list[Position], refusal: StartRefusal
) -> None:
    row = _at(BEFORE)._replace(key=MessageKey("a", generation).text())
    found = {place: _at(place) for place in there}
    assert refusal_of(row, judge(key, found, VIEW), VIEW) is refusal


def test_on_a_store_whose_writes_are_at_once_what_is_not_there_has_ended() -> None:
    ahead = _key(place=_place(60))
    assert judge(ahead, {}, View(NOW_US)).state is Is.ENDED


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (VIEW._replace(purged_before_us=ids.birth_us(FIRST) + 1), Is.ENDED),
        (VIEW._replace(purged_before_us=ids.birth_us(FIRST)), Is.WAITING),
        (VIEW._replace(former_until_us=ids.birth_us(FIRST) + 1), Is.ENDED),
    ],
)
def test_what_entered_before_a_purge_or_in_a_former_life_is_not_there(
    view: View, state: Is
) -> None:
    judged = judge(_key(), {OLD: _at(OLD)}, view)
    assert judged.state is state
    assert (judged.row is None) == (state is Is.ENDED)


def test_a_purge_of_the_dead_reaches_what_died_before_it() -> None:
    row = _at(DEAD)._replace(first=None)
    for after_us, state in ((0, Is.DEAD), (1, Is.ENDED)):
        view = VIEW._replace(dead_purged_before_us=row.entered_us + after_us)
        assert judge(_key(at=DEAD), {DEAD: row}, view).state is state


def test_a_hold_of_a_dropped_queue_binds_nobody() -> None:
    held = KeyRow("mail", "a", "free", "x", until_ms=NOW_MS + 1, since_us=NOW_US - 1)
    assert judge(held, {}, VIEW._replace(former_until_us=NOW_US)).state is Is.FREE


# As it is stored ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [OLD, DEAD])
def test_places_are_read_as_they_were_written(place: Position) -> None:
    assert keyrow.place_in(keyrow.place_text(place), "mail") == place


@pytest.mark.parametrize(
    "text",
    ["", "1.2.3", None, 7, "dead.1.2.3." + "0" * 31, "1.2.3." + "g" * 32, "-1.2.3." + "0" * 32],
)
def test_what_is_no_place_is_refused(text: object) -> None:
    with pytest.raises(ValueError, match="is no place"):
        keyrow.place_in(text, "mail")


LIVE = keyrow.message_in(FIRST, 2)
STATE = keyrow.waiting(OLD, before=Before(1, BEFORE), unique_ms=5).text()


def test_a_state_is_read_as_it_was_written() -> None:
    key = KeyRow.read("mail", "a", LIVE + "!", STATE)
    assert (key.first, key.generation, key.is_doomed) == (FIRST, 2, True)
    assert (key.does, key.place, key.before) == (Does.WAITING, OLD, Before(1, BEFORE))
    assert key.unique_ms == 5


@pytest.mark.parametrize(
    ("live", "state"),
    [
        (LIVE, None),
        (LIVE, ""),
        (LIVE, "[" * 100_000),
        (LIVE, "[]"),
        (LIVE, "{}"),
        (LIVE, STATE.replace("waiting", "sleeping")),
        (LIVE, STATE.replace('"unique":5', '"unique":"5"')),
        (LIVE, STATE.replace("1@", "x@")),
        (LIVE, '{"is":"waiting","place":"1"}'),
        ("x", STATE),
        (LIVE + "?", STATE),
        (7, STATE),
        ("free", STATE),
        ("free", '{"until":-1,"since":0}'),
    ],
)
def test_a_damaged_row_says_which_and_what_to_do(live: object, state: object) -> None:
    with pytest.raises(
        StoreCorrupt, match=r"key 'a' of queue 'mail' is damaged: .* delete its row"
    ):
        KeyRow.read("mail", "a", live, state)
