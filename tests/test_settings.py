"""A queue's settings."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardq.errors import BadSetting, BadTime, SchemaNewer, StoreCorrupt
from shardq.model import formats
from shardq.model.settings import (
    CHOICES,
    QueueOptions,
    Settings,
    alter,
    create,
    layout_of,
    use_groups,
    use_keys,
)

NOW_MS = 1_800_000_000_000


def test_settings_read_back_as_they_are_stored() -> None:
    made = create({"lanes": 3, "bands": 2, "minute": "1s", "hold": timedelta(seconds=5)}, NOW_MS)
    [altered] = alter(made, {"lanes": 2, "attempts": 9}, NOW_MS + 1)
    for settings in (made, altered):
        assert Settings.from_json(settings.to_json(), "mail") == settings


def test_type_checkers_know_each_setting_that_a_user_may_choose() -> None:
    assert QueueOptions.__annotations__.keys() == CHOICES.keys()


def test_settings_of_a_newer_shardq_are_passed_over_and_written_back_unchanged() -> None:
    newer = {"colour": {"b": [1, None], "a": "é"}, "unknown": 5, "hold": 1.5}
    text = json.dumps(json.loads(create({}, NOW_MS).to_json()) | newer)
    read = Settings.from_json(text, "mail")
    assert replace(read, unknown=()) == create({}, NOW_MS)
    [altered] = alter(read, {"attempts": 9}, NOW_MS + 1)
    stored = json.loads(altered.to_json())
    assert stored == json.loads(text) | {"attempts": 9}
    assert Settings.from_json(altered.to_json(), "mail") == altered


def test_settings_that_need_a_newer_shardq_are_not_guessed_at() -> None:
    text = Settings(needs=formats.FORMAT + 1, attempts=-5).to_json()
    with pytest.raises(SchemaNewer, match=r"^queue 'mail' .* newer shardq .*; upgrade shardq here"):
        Settings.from_json(text, "mail")


def test_a_setting_that_the_record_lacks_has_its_default() -> None:
    stored = json.loads(create({}, NOW_MS).to_json())
    for name in ("needs", "keyed", "keys_used", "history_ms", "history_from_ms"):
        del stored[name]
    made = replace(create({}, NOW_MS), history_ms=0, history_from_ms=0)
    assert Settings.from_json(json.dumps(stored), "mail") == made


def test_the_first_key_is_recorded_once() -> None:
    made = create({"keyed": False}, NOW_MS)
    assert (made.keyed, made.keys_used) == (False, False)
    [used] = use_keys(made)
    assert used == replace(made, keys_used=True)
    assert use_keys(used) == []


def test_a_queue_whose_messages_are_all_keyed_uses_keys_from_its_creation() -> None:
    made = create({"keyed": True}, NOW_MS)
    assert made == replace(made, keyed=True, keys_used=True)
    assert Settings.from_json(made.to_json(), "mail") == made
    assert alter(made, {"keyed": True, "attempts": 9}, NOW_MS) == [replace(made, attempts=9)]


def test_a_new_queue_reads_the_lanes_it_writes_and_has_64_for_groups() -> None:
    made = create({"lanes": 7}, NOW_MS)
    assert (made.lanes_written, made.lanes_read, made.group_lanes) == (7, 7, 64)
    assert made.lanes_made == ((7, NOW_MS),)
    assert not made.groups_used


def test_lanes_for_groups_are_beside_the_others() -> None:
    made = create({"lanes": 2, "group_lanes": 8}, NOW_MS)
    assert (made.lanes_written, made.lanes_read, made.group_lanes) == (2, 2, 8)
    layout = layout_of(made, "mail")
    assert layout.all_lanes() == layout.lanes()
    [used] = use_groups(made)
    layout = layout_of(used, "mail")
    assert len(layout.all_lanes()) == 2 * made.bands + 8
    assert set(layout.lanes_of_groups()).isdisjoint(layout.lanes())
    assert use_groups(used) == []


def test_more_lanes_are_read_before_they_are_written() -> None:
    first, second = alter(create({"lanes": 2}, NOW_MS), {"lanes": 8}, NOW_MS + 5)
    assert (first.lanes_read, first.lanes_written) == (8, 2)
    assert (second.lanes_read, second.lanes_written) == (8, 8)
    assert second.lanes_made == ((2, NOW_MS), (8, NOW_MS + 5))


def test_fewer_lanes_are_written_but_all_are_still_read() -> None:
    eight = create({"lanes": 8}, NOW_MS)
    [three] = alter(eight, {"lanes": 3}, NOW_MS + 5)
    assert (three.lanes_read, three.lanes_written, three.group_lanes) == (8, 3, 64)
    [back] = alter(three, {"lanes": 8}, NOW_MS + 9)
    assert (back.lanes_read, back.lanes_written) == (8, 8)
    assert back.lanes_made == eight.lanes_made


@given(st.lists(st.integers(1, 256), min_size=1, max_size=8))
def test_no_order_of_changes_ever_leaves_a_written_lane_unread(changes: list[int]) -> None:
    settings = create({"lanes": 4}, NOW_MS)
    most = 4
    for step, lanes in enumerate(changes):
        for stored in alter(settings, {"lanes": lanes}, NOW_MS + step):
            assert stored.lanes_read >= max(stored.lanes_written, settings.lanes_written, most)
            settings = stored
        most = max(most, lanes)
    assert settings.lanes_written == changes[-1]
    assert settings.lanes_read == most
    for index in range(most):
        assert settings.lane_made_ms(index) >= NOW_MS


@pytest.mark.parametrize("name", ["minute", "bands", "group_lanes", "keyed"])
def test_what_is_fixed_at_creation_cannot_be_altered(name: str) -> None:
    made = create({}, NOW_MS)
    with pytest.raises(BadSetting, match=name):
        alter(made, {name: {"minute": "2m", "keyed": True}.get(name, 9)}, NOW_MS)


def test_altering_a_fixed_setting_to_what_it_is_changes_nothing() -> None:
    made = create({}, NOW_MS)
    assert alter(made, {"bands": 3, "minute": "1m"}, NOW_MS + 1) == [made]


@pytest.mark.parametrize(
    "given_",
    [
        {"lanes": 0},
        {"lanes": 257},
        {"lanes": "4"},
        {"lanes": True},
        {"lanes": 2.0},
        {"bands": 17},
        {"attempts": 0},
        {"group_lanes": 0},
        {"minute": "0s"},
        {"minute": "2d"},
        {"offset": "0s"},
        {"hold": "0s"},
        {"visibility": "999ms"},
        {"lease": "4999ms"},
        {"lease": "61s"},
        {"keyed": 1},
        {"keyed": "yes"},
        {"backoff": "2d"},
        {"colour": 1},
        {"lanes_read": 9},
        {"purged_before_us": 1},
        {"keys_used": True},
    ],
)
def test_a_value_out_of_bounds_or_an_unknown_name_is_refused(given_: dict) -> None:
    with pytest.raises(BadSetting):
        create(given_, NOW_MS)
    with pytest.raises(BadSetting):
        alter(create({}, NOW_MS), given_, NOW_MS)


def test_a_duration_that_cannot_be_read_names_its_setting() -> None:
    with pytest.raises(BadTime, match="backoff"):
        create({"backoff": 5}, NOW_MS)


@pytest.mark.parametrize(
    "text",
    [
        "{bad",
        "",
        "5",
        "[]",
        "null",
        "[" * 100_000,
        None,
        b"\xff",
        '{"attempts": "3"}',
        '{"attempts": true}',
        '{"needs": "2"}',
        '{"needs": 0}',
        '{"needs": null}',
        '{"paused": 1}',
        '{"keyed": 1}',
        '{"keys_used": null}',
        '{"minute_ms": 0}',
        '{"lanes_read": 1000000000}',
        '{"purged_before_us": -1}',
        '{"lanes_made": 5}',
        '{"lanes_made": [[1]]}',
        '{"lanes_made": [["4", 0]]}',
    ],
)
def test_damaged_settings_are_said_to_be_and_whose_they_are(text: object) -> None:
    with pytest.raises(
        StoreCorrupt, match=r"^the settings of queue 'mail' are damaged: .*; restor"
    ):
        Settings.from_json(text, "mail")


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"lanes": 0}, "lanes must be between 1 and 256, or 'auto', not 0"),
        ({"lanes": 2, "group_lanes": 257}, "group_lanes must be between 1 and 256, not 257"),
        ({"hold": "90m"}, "hold must be between 100ms and 1h, not 1h30m"),
    ],
)
def test_a_bound_is_named_by_the_setting_and_told_as_it_is_given(
    given_: dict[str, object], said: str
) -> None:
    with pytest.raises(BadSetting, match=f"^{said}"):
        create(given_, NOW_MS)


def test_a_backoff_is_no_longer_than_its_longest() -> None:
    both = {"backoff": "2h", "backoff_max": "1s"}
    for given_ in (both, {"backoff": "2h"}, {"backoff_max": "10ms"}):
        with pytest.raises(BadSetting, match=r"^backoff .* must be no longer than backoff_max "):
            create(given_, NOW_MS)
        with pytest.raises(BadSetting, match=r"^backoff .* must be no longer than backoff_max "):
            alter(create({}, NOW_MS), given_, NOW_MS)
    [longer] = alter(create({}, NOW_MS), {**both, "backoff_max": "2h"}, NOW_MS)
    assert longer.backoff_of(9) == 7_200_000
    # A queue that was stored with such a value works on, and every other setting may be altered.
    odd = replace(longer, backoff_ms=10, backoff_max_ms=1)
    assert Settings.from_json(odd.to_json(), "mail") == odd
    assert alter(odd, {"attempts": 3}, NOW_MS) == [replace(odd, attempts=3)]


def test_an_unknown_setting_is_answered_with_those_there_are() -> None:
    with pytest.raises(BadSetting) as caught:
        create({"lane": 1}, NOW_MS)
    assert all(name in str(caught.value) for name in CHOICES)


def test_no_history_is_kept_unless_asked_for_and_it_can_be_turned_off_again() -> None:
    made = create({}, 1_000)
    assert made.history_ms == 0
    [on] = alter(made, {"history": "7d"}, 60_000)
    # Others follow within 5 s; what enters before may not be recorded.
    assert (on.history_ms, on.history_from_ms) == (7 * 86_400_000, 65_000)
    [off] = alter(on, {"history": "off"}, 90_000)
    assert off.history_ms == 0
    assert create({"history": "1h", "offset": "30s"}, 31_000).history_from_ms == 1_000


def test_a_history_that_is_kept_longer_is_whole_from_then_on() -> None:
    made = create({"history": "2d"}, 0)
    week_ms = 7 * 86_400_000
    [less] = alter(made, {"history": "1h"}, week_ms)
    assert less.history_from_ms == made.history_from_ms
    [more] = alter(less, {"history": "2d"}, week_ms)
    # Until other processes know, records are kept an hour: the history is whole 5 s later.
    assert more.history_from_ms == week_ms + 5_000
    [same] = alter(more, {"lanes": 2}, 2 * week_ms)
    assert same.history_from_ms == more.history_from_ms


@pytest.mark.parametrize("kept", ["0s", "0", "1s", "10000d", "999999d", 7, None, "never"])
def test_a_retention_out_of_bounds_is_refused_and_told_what_could_be(kept: object) -> None:
    with pytest.raises(
        (BadSetting, BadTime), match=r"^history must be between 1m and 1825d, or 'off', not "
    ):
        create({"history": kept}, 0)


def test_back_off_doubles_from_its_first_delay_to_its_longest() -> None:
    settings = Settings(backoff_ms=1_000, backoff_max_ms=10_000)
    assert [settings.backoff_of(attempt) for attempt in range(1, 7)] == [
        1_000,
        2_000,
        4_000,
        8_000,
        10_000,
        10_000,
    ]
    assert settings.backoff_of(10_000) == 10_000
