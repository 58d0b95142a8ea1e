"""The alphabets of names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.errors import BadName
from shardq.model.names import dead_queue, is_dead_queue, keyspace_name, label, queue_name


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", fullmatch=True))
def test_a_queue_name_of_the_alphabet_is_taken(name: str) -> None:
    assert queue_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "-a", "_a", "a b", "a/b", "a'b", "a\n", "é", "a" * 101, "a;DROP", None, 5, b"mail"],
)
def test_any_other_queue_name_is_refused(name: object) -> None:
    with pytest.raises(BadName, match="queue name"):
        queue_name(name)


@pytest.mark.parametrize("name", ["shardq", "a", "a_1", "a" * 48])
def test_a_keyspace_of_small_letters_is_taken(name: str) -> None:
    assert keyspace_name(name) == name


@pytest.mark.parametrize("name", ["", "A", "1a", "a-b", 'a"', "a" * 49, "a\n", None])
def test_any_other_keyspace_is_refused(name: object) -> None:
    with pytest.raises(BadName, match="keyspace"):
        keyspace_name(name)


@pytest.mark.parametrize("name", ["a", "größe 7", "日本", "x" * 256, "'; DROP TABLE messages; --"])
def test_a_label_is_any_printable_text(name: str) -> None:
    assert label(name, what="group") == name


EMOJI = [
    "👩\u200d👩\u200d👧\u200d👦",
    "❤\ufe0f\u200d🔥",
    "👍🏽",
    "🇨🇭",
    "1\ufe0f\u20e3",
    "🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
    "\U0001fae9",  # of Unicode 16, which Python knows from 3.14 on
    "e\u0301",
    "\u0645\u06cc\u200c\u062e",
    "क्\u200dष",
]


@pytest.mark.parametrize("name", EMOJI)
def test_a_label_may_hold_emoji_and_what_joins_characters(name: str) -> None:
    assert label(name, what="message id") == name
    assert label(f"order-{name}-7", what="group") == f"order-{name}-7"


def test_the_length_of_a_label_counts_characters_and_not_what_they_look_like() -> None:
    astronaut = "👩\u200d🚀"
    assert label(astronaut * 85, what="group") == astronaut * 85
    with pytest.raises(BadName, match="1 to 256 printable characters"):
        label(astronaut * 86, what="group")


@pytest.mark.parametrize(
    "name",
    [
        "", "a\n", "\0", "x" * 257, "\ud800", "🎈\ud83d", "a\x1b[31mb", "a\u2028b",
        "a\x85b", "a\u202eb", "\u200d", "\u200c\U000e0067", "a\u00adb", "a\ufeffb", "\uffff",
        None, 7,
    ],
)  # fmt: skip
def test_a_label_that_cannot_be_printed_is_refused(name: object) -> None:
    with pytest.raises(BadName, match="group"):
        label(name, what="group")


def test_a_label_that_is_no_text_is_told_by_its_type() -> None:
    for name, told in ((7, "int 7"), (b"order-7", "bytes b'order-7'"), (None, "None")):
        with pytest.raises(BadName, match=f"^key must be text, not {told}"):
            label(name, what="key")


def test_the_error_shows_a_long_name_cut_short() -> None:
    with pytest.raises(BadName) as caught:
        queue_name("x" * 10_000)
    assert len(str(caught.value)) < 300


def test_a_dead_letter_queue_is_told_by_its_name() -> None:
    assert dead_queue("mail") == "mail.dead"
    assert is_dead_queue("mail.dead")
    assert not is_dead_queue("mail")


def test_a_queue_of_the_longest_name_can_bury_its_dead() -> None:
    longest = queue_name("x" * 100)
    assert queue_name(dead_queue(longest)) == longest + ".dead"
