"""A queue's record, shared by all its processes."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from shardq.errors import BadSetting, StoreCorrupt, StoreUnavailable, UnknownQueue
from shardq.model import formats
from shardq.records.register import REFRESH_US, Register
from shardq.testing import Stage


def register_of(stage: Stage) -> Register:
    return Register.open(stage._store, stage.clock, "mail", {}, create=True)


def test_it_is_read_anew_every_3_s_and_not_for_each_message(stage: Stage) -> None:
    register = register_of(stage)
    before = stage.faults.calls["records queues"]
    for _ in range(100):
        register.refresh()
    assert stage.faults.calls["records queues"] == before
    stage.clock.advance(REFRESH_US / 1e6)
    assert not register.refresh()
    assert stage.faults.calls["records queues"] == before + 1


def test_a_change_elsewhere_is_told_once(stage: Stage) -> None:
    mine, other = register_of(stage), register_of(stage)
    other.change(lambda now: [replace(now, paused=True)])
    stage.clock.advance(3)
    assert mine.refresh()
    assert mine.settings.paused
    stage.clock.advance(3)
    assert not mine.refresh()


def test_settings_in_code_that_differ_are_warned_of_once_and_the_stored_ones_hold(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    made = stage.connect().queue("warned-of", lanes=4, history="off")
    for _ in range(2):
        db = stage.connect()
        for _ in range(2):
            queue = db.queue("warned-of", lanes=8, hold="90s", history="7d", attempts=5)
            assert queue.settings == made.settings
    [record] = caplog.records
    assert (record.levelname, record.name.partition(".")[0]) == ("WARNING", "shardq")
    assert record.getMessage() == (
        "queue 'warned-of' exists, and keeps lanes 4, not 8; hold 30s, not 1m30s; history off, not "
        "7d; change it with alter(), at a shell with `shardq queues alter`"
    )


def test_a_rolling_change_of_a_setting_works_in_every_order(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    for name, old_starts_last in (("rolling-1", False), ("rolling-2", True)):
        old = stage.connect().queue(name, attempts=5)
        new = stage.connect().queue(name, attempts=7)
        assert new.settings.attempts == 5
        new.alter(attempts=7)
        if old_starts_last:
            old = stage.connect().queue(name, attempts=5)
        stage.clock.advance(3)
        old.put("x")
        assert old.settings.attempts == 7
    told = [record.getMessage() for record in caplog.records]
    assert [text.partition(";")[0] for text in told] == [
        "queue 'rolling-1' exists, and keeps attempts 5, not 7",
        "queue 'rolling-2' exists, and keeps attempts 5, not 7",
        "queue 'rolling-2' exists, and keeps attempts 7, not 5",
    ]


def test_settings_in_code_are_judged_by_what_the_queue_has_on_every_connection(
    stage: Stage,
) -> None:
    made = stage.connect().queue("mail")
    made.alter(backoff="2h", backoff_max="5h")
    db = stage.connect()
    for _ in range(2):
        # Longer than a new queue's backoff_max.
        assert db.queue("mail", backoff="2h").settings == made._home.register.settings
        with pytest.raises(BadSetting, match="attempts must be between 1 and 10000, not 0"):
            db.queue("mail", attempts=0)
    with pytest.raises(BadSetting, match="backoff 2h must be no longer than backoff_max 1h"):
        db.queue("new", backoff="2h")


def test_what_is_fixed_at_creation_must_be_what_the_queue_has(stage: Stage) -> None:
    stage.connect().queue("mail", lanes=4)
    for given, told in (
        ({"bands": 2}, "with bands 3, not 2; that is fixed"),
        ({"minute": "30s", "attempts": 7}, "with minute 1m, not 30s; that is fixed"),
        ({"group_lanes": 5}, "with group_lanes 64, not 5; that is fixed"),
        ({"keyed": True}, "with keyed no, not yes; that is fixed"),
    ):
        with pytest.raises(BadSetting, match=f"^queue 'mail' exists {told}"):
            stage.connect().queue("mail", **given)


def test_keys_are_told_to_other_processes_once(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    register = register_of(stage)
    calls = stage.faults.calls
    register.use_keys()
    before = calls["records queues"], calls["write_records queues"]
    for _ in range(100):
        register.use_keys()
    assert (calls["records queues"], calls["write_records queues"]) == before
    # A process that has not read yet that keys are used finds that out, and writes nothing.
    queue._home.register.use_keys()
    assert calls["write_records queues"] == before[1]
    assert queue.settings.keys_used


@pytest.mark.parametrize("is_made_before", [True, False])
def test_the_dead_of_a_queue_with_keys_use_keys(stage: Stage, is_made_before: bool) -> None:
    register = register_of(stage)
    if is_made_before:
        assert not register.dead().settings.keys_used
    register.use_keys()
    assert register.dead().settings.keys_used
    assert register_of(stage).dead().settings.keys_used


def test_a_dropped_queue_with_keys_made_anew_uses_keys(stage: Stage) -> None:
    queue = stage.connect().queue("mail", keyed=True)
    queue.drop()
    again = stage.connect().queue("mail").settings
    assert (again.keyed, again.keys_used) == (False, True)
    stage.connect().queue("post").drop()
    again = stage.connect().queue("post", keyed=True).settings
    assert (again.keyed, again.keys_used) == (True, True)


def test_a_dropped_queue_made_anew_needs_what_it_needed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "FORMAT", formats.BASE + 1)
    queue = stage.connect().queue("mail")
    queue._home.register.change(lambda now: [replace(now, needs=formats.BASE + 1)])
    queue.drop()
    assert stage.connect().queue("mail").settings.needs == formats.BASE + 1


def test_a_dropped_queue_made_anew_keeps_what_a_newer_shardq_stored(stage: Stage) -> None:
    queue = stage.connect().queue("mail")
    queue._home.register.change(lambda now: [replace(now, unknown=(("colour", "7"),))])
    queue.drop()
    assert stage.connect().queue("mail").settings.unknown == (("colour", "7"),)


def test_a_queue_of_the_dead_that_is_not_there_says_that_nothing_has_died(stage: Stage) -> None:
    db = stage.connect()
    with pytest.raises(UnknownQueue, match="no queue 'mail'; make it"):
        db.queue("mail.dead", create=False)
    mail = db.queue("mail")
    with pytest.raises(UnknownQueue, match=r"no queue 'mail.dead': nothing of 'mail' has died yet"):
        db.queue("mail.dead", create=False)
    mail.drop()
    with pytest.raises(UnknownQueue, match="no queue 'mail'; make it"):
        db.queue("mail.dead", create=False)


def test_a_change_that_finds_another_made_meanwhile_starts_from_that(stage: Stage) -> None:
    mine, other = register_of(stage), register_of(stage)

    def interfere() -> None:
        other.change(lambda now: [replace(now, attempts=now.attempts + 1)])

    stage.faults.call("write_records queues", interfere, after=False)
    mine.change(lambda now: [replace(now, attempts=now.attempts + 1)])
    assert mine.settings.attempts == 7


def test_a_change_to_what_is_already_so_writes_nothing(stage: Stage) -> None:
    register = register_of(stage)
    before = stage.faults.calls["write_records queues"]
    register.change(lambda now: [now])
    register.change(lambda _now: [])
    assert stage.faults.calls["write_records queues"] == before


def test_a_change_that_is_always_overtaken_gives_up_in_the_end(stage: Stage) -> None:
    mine, other = register_of(stage), register_of(stage)

    def interfere() -> None:
        other.change(lambda now: [replace(now, attempts=now.attempts % 1_000 + 1)])

    # Each interference is a call of its own, so every other one is somebody else's.
    for nth in range(1, 80, 2):
        stage.faults.call("write_records queues", interfere, nth=nth, after=False)
    with pytest.raises(StoreUnavailable, match="kept"):
        mine.change(lambda now: [replace(now, hold_ms=7_000)])


def test_the_dead_letter_queue_has_few_long_shards_and_never_gives_up(stage: Stage) -> None:
    dead = register_of(stage).dead()
    assert dead.name == "mail.dead"
    assert dead.layout.minute_ms == 3_600_000
    assert len(dead.layout.lanes()) == 1


@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("settings", "'{bad'", "the settings of queue 'mail' are damaged: '{bad'; restore"),
        (
            "settings",
            "'{\"hold_ms\":5}'",
            "the settings of queue 'mail' are damaged: {'hold_ms': 5}",
        ),
        (
            "secret",
            "'text'",
            "the record of queue 'mail' is damaged: its version is 1, its secret str",
        ),
        ("version", "'two'", "the record of queue 'mail' is damaged: its version is 'two', "),
    ],
)
def test_a_damaged_record_is_told_with_its_queue_to_all_who_read_it(
    stage: Stage, column: str, value: str, said: str
) -> None:
    register = register_of(stage)
    stage._sqlite._database.write(f"UPDATE queues SET {column} = {value}", ())
    connection = stage.connect()
    asks = [
        partial(register.refresh, force=True),
        partial(register.change, lambda now: [replace(now, attempts=7)]),
        partial(connection.queue, "mail"),
        partial(connection.queue, "mail", create=False),
    ]
    if column == "settings":
        asks += [connection.queues, partial(connection.queue, "mail.dead", create=False)]
    for ask in asks:
        with pytest.raises(StoreCorrupt) as caught:
            ask()
        assert str(caught.value).startswith(said)
