"""The proofs' judge finds what it is there to find; the proofs themselves take minutes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from proofs import catchup, crash, judge, lanes, producer, purge, timers
from proofs.judge import HandOut, Put
from proofs.opening import opened
from proofs.promise import Promise
from proofs.stage import Stage

import shardq
from shardq.clock import SystemClock
from shardq.errors import ShardqError, UnknownQueue
from shardq.inspection import trace

SCRIPTS = Path(__file__).parent.parent / "scripts"
S = 1_000_000


def put(
    body: str, due_s: float, *, at_s: float | None = None, group: str | None = None, band: int = 0
) -> Put:
    began_us = round((due_s if at_s is None else at_s) * S)
    return Put(body, round(due_s * 1_000), began_us, began_us + 10_000, group, band)


class Written:
    """The hand-outs of some consumers, numbered as they are written down."""

    def __init__(self) -> None:
        self.hand_outs: list[HandOut] = []
        self._numbers: Counter[str] = Counter()

    def add(
        self,
        one: Put,
        at_s: float,
        *,
        for_s: float = 0.1,
        consumer: str = "one",
        attempt: int = 1,
        outcome: str = "acked",
        off_s: float = 0,
        delay_s: float = 0,
    ) -> Written:
        number = self._numbers[consumer]
        self._numbers[consumer] += 1
        began_us = round(at_s * S)
        self.hand_outs.append(
            HandOut(
                number,
                f"id-{one.body}",
                one.body,
                one.due_ms + round(off_s * 1_000),
                began_us,
                began_us + round(for_s * S),
                attempt,
                outcome,
                round(delay_s * 1_000),
                consumer,
            )
        )
        return self


A, B, C = put("a", 1), put("b", 2), put("c", 3)
PUTS = [A, B, C]


def in_order() -> Written:
    return Written().add(A, 1).add(B, 2).add(C, 3)


def test_each_once_is_whole() -> None:
    verdict = judge.whole(PUTS, in_order().hand_outs)
    assert verdict.delivered == 3
    assert [verdict.lost, verdict.duplicated, verdict.early, verdict.foreign] == [[], [], [], []]


def test_a_lost_message_is_found() -> None:
    assert judge.whole(PUTS, in_order().hand_outs[:2]).lost == [b"c"]


def test_a_doubled_message_is_found_and_excused_by_a_kill_alone() -> None:
    twice = in_order().add(A, 4, consumer="two").hand_outs
    assert judge.whole(PUTS, twice).duplicated == [b"a"]
    cut = trace.Interruption("one", "killed", 1 * S, 1 * S)
    verdict = judge.whole(PUTS, twice, [cut])
    assert (verdict.duplicated, verdict.repeats) == ([], 1)


def test_an_early_message_is_found() -> None:
    early = Written().add(A, 0.999)
    assert len(judge.whole([A], early.hand_outs).early) == 1


def test_what_is_handed_out_by_due_is_in_order() -> None:
    found = judge.disorder(in_order().hand_outs)
    assert (found.count, found.worst_ms) == (0, 0)


def test_each_hand_out_after_one_of_a_later_due_is_counted() -> None:
    found = judge.disorder(Written().add(C, 3).add(A, 4).add(B, 5).hand_outs)
    assert (found.count, found.worst_ms) == (2, 2_000)


def test_the_order_is_that_of_the_hand_outs_not_that_of_the_lines() -> None:
    lines = in_order().hand_outs
    assert judge.disorder([lines[2], lines[0], lines[1]]).count == 0


def test_equal_dues_have_no_order() -> None:
    same = put("d", 1)
    assert judge.disorder(Written().add(same, 1).add(A, 2).hand_outs).count == 0


GROUP = [put("g1", 1, group="g"), put("g2", 2, group="g"), put("g3", 3, group="g")]


def test_a_group_one_at_a_time_in_order_has_no_faults() -> None:
    written = Written()
    for place, one in enumerate(GROUP):
        written.add(one, 5 + place, for_s=1, consumer=f"consumer-{place}")
    found = judge.group_faults([*PUTS, *GROUP], [*in_order().hand_outs, *written.hand_outs])
    assert (found.groups, found.messages) == (1, 3)
    assert (found.disordered, found.together) == ([], [])


def test_a_group_out_of_order_is_found_across_consumers() -> None:
    first, second, third = GROUP
    written = Written().add(second, 4, consumer="two").add(first, 5).add(third, 6)
    found = judge.group_faults(GROUP, written.hand_outs)
    assert [(a.body, b.body) for a, b in found.disordered] == [("g2", "g1")]
    assert not found.together


def test_each_message_that_was_overtaken_by_its_group_is_found() -> None:
    first, second, third = GROUP
    written = Written().add(third, 4).add(first, 5).add(second, 6)
    found = judge.group_faults(GROUP, written.hand_outs)
    assert sorted(b.body for _, b in found.disordered) == ["g1", "g2"]


def test_a_message_that_was_stored_too_late_to_keep_its_place_is_told_apart() -> None:
    first, second, _ = GROUP
    written = Written().add(second, 4).add(first, 5)
    stored_us = first.acked_us - first.due_ms * 1_000
    kept = judge.group_faults(GROUP, written.hand_outs, late_us=stored_us)
    assert (len(kept.disordered), len(kept.stored_late)) == (1, 0)
    late = judge.group_faults(GROUP, written.hand_outs, late_us=stored_us - 1)
    assert (len(late.disordered), len(late.stored_late)) == (0, 1)


def test_a_group_s_order_is_that_of_due_and_then_of_put() -> None:
    late = put("late", 9, at_s=1, group="g")
    soon = put("soon", 5, at_s=2, group="g")
    again = put("again", 5, at_s=3, group="g")
    good = Written().add(soon, 10).add(again, 11).add(late, 12)
    assert not judge.group_faults([late, soon, again], good.hand_outs).disordered
    bad = Written().add(again, 10).add(soon, 11).add(late, 12)
    assert len(judge.group_faults([late, soon, again], bad.hand_outs).disordered) == 1


def test_two_of_a_group_at_a_time_are_found_even_in_order() -> None:
    first, second, _ = GROUP
    written = Written().add(first, 5, for_s=1).add(second, 5.999_999, consumer="two")
    found = judge.group_faults(GROUP, written.hand_outs)
    assert not found.disordered
    assert [(a.body, b.body) for a, b in found.together] == [("g1", "g2")]


def test_one_that_runs_long_is_together_with_all_that_begin_meanwhile() -> None:
    first, second, third = GROUP
    written = Written().add(first, 5, for_s=9).add(second, 6, for_s=1).add(third, 8, for_s=1)
    assert len(judge.group_faults(GROUP, written.hand_outs).together) == 2


def test_a_second_delivery_beside_the_first_is_two_at_a_time() -> None:
    first = GROUP[0]
    written = Written().add(first, 5, for_s=2).add(first, 6, consumer="two", attempt=2)
    assert len(judge.group_faults(GROUP, written.hand_outs).together) == 1


def test_what_begins_before_one_that_was_put_off_comes_again_is_found() -> None:
    first, second, third = GROUP
    written = Written().add(first, 5, outcome="retried").add(second, 6).add(first, 7).add(third, 8)
    found = judge.group_faults(GROUP, written.hand_outs)
    assert [(a.body, b.body) for a, b in found.passed] == [("g1", "g2")]
    assert not found.disordered


@pytest.mark.parametrize("outcome", ["retried", "snoozed"])
def test_a_group_that_waits_for_one_that_was_put_off_has_no_faults(outcome: str) -> None:
    first, second, third = GROUP
    written = Written().add(first, 5, outcome=outcome).add(first, 7).add(second, 8).add(third, 9)
    assert not judge.group_faults(GROUP, written.hand_outs).passed


def test_what_comes_again_unasked_is_passed_by_none() -> None:
    first, second, _ = GROUP
    written = Written().add(first, 5).add(second, 6).add(first, 7, consumer="two")
    assert not judge.group_faults(GROUP, written.hand_outs).passed


def test_what_was_put_off_may_be_overtaken_in_a_lane_that_is_seconds_behind() -> None:
    first, second, _ = GROUP
    written = Written().add(second, 4.1).add(first, 5, off_s=2)
    found = judge.group_faults(GROUP, written.hand_outs)
    assert (len(found.disordered), len(found.lagged)) == (0, 1)


@pytest.mark.parametrize(
    ("delay_s", "began_s", "passed"), [(0, 7.0, 1), (0, 7.2, 0), (2, 9.0, 1), (2, 9.2, 0)]
)
def test_what_asked_for_another_may_be_passed_by_what_is_seconds_behind(
    delay_s: float, began_s: float, passed: int
) -> None:
    first, second, _ = GROUP
    written = Written().add(first, 5, outcome="retried", delay_s=delay_s)
    written.add(second, began_s).add(first, 10)
    found = judge.group_faults(GROUP, written.hand_outs)
    assert (len(found.passed), len(found.lagged)) == (passed, 1 - passed)


@pytest.mark.parametrize(("ends_s", "lagged"), [(2.0, 1), (2.2, 0)])
def test_what_waited_for_its_own_group_is_not_behind(ends_s: float, lagged: int) -> None:
    first, second, third = (put(f"g{due_s}", due_s, group="g") for due_s in (1, 1.5, 2))
    written = Written().add(first, 1, for_s=ends_s - 1).add(third, 4.1).add(second, 5, off_s=2)
    found = judge.group_faults([first, second, third], written.hand_outs)
    assert (len(found.disordered), len(found.lagged)) == (1 - lagged, lagged)


def test_what_was_put_off_may_be_overtaken_beside_what_is_seconds_behind() -> None:
    first, second, _ = GROUP
    behind = put("h1", 1, group=None)
    written = Written().add(behind, 3.1).add(second, 3.2).add(first, 5, off_s=2)
    found = judge.group_faults([*GROUP, behind], written.hand_outs)
    assert (len(found.disordered), len(found.lagged)) == (0, 1)


def test_what_asked_for_another_may_be_passed_in_a_lane_that_is_seconds_behind() -> None:
    first, second, _ = GROUP
    written = Written().add(first, 5, outcome="retried").add(second, 6).add(first, 7)
    behind = put("h1", 1, group=None)
    for began_s, passed in ((2, 1), (5, 0)):
        beside = Written().add(behind, began_s).hand_outs
        found = judge.group_faults([*GROUP, behind], [*written.hand_outs, *beside])
        assert len(found.passed) == passed


@pytest.mark.parametrize(
    ("at_s", "off_s", "other_off_s"), [(4.0, 2, 0), (4.1, 0, 0), (4.1, 2, 0.5), (4.1, 2, 2)]
)
def test_what_was_not_put_off_or_with_another_or_in_time_keeps_its_place(
    at_s: float, off_s: float, other_off_s: float
) -> None:
    first, second, _ = GROUP
    written = Written().add(second, at_s, off_s=other_off_s).add(first, 5, off_s=off_s)
    found = judge.group_faults(GROUP, written.hand_outs)
    assert (len(found.disordered), len(found.lagged)) == (1, 0)


def test_groups_may_run_beside_each_other() -> None:
    other = put("h1", 1, group="h")
    written = Written().add(GROUP[0], 5, for_s=2).add(other, 5, for_s=2)
    assert not judge.group_faults([*GROUP, other], written.hand_outs).together


HIGH, LOW = put("high", 1), put("low", 1, band=1)


def overtaken(written: Written, *puts: Put) -> judge.Overtaking:
    return judge.overtaking({one.body: one for one in puts}, written.hand_outs)


def test_a_higher_priority_first_is_as_it_should_be() -> None:
    found = overtaken(Written().add(HIGH, 2).add(LOW, 3), HIGH, LOW)
    assert (found.hand_outs, found.waits_ms) == (2, [])


def test_a_lower_priority_before_one_that_was_there_is_found_with_its_wait() -> None:
    found = overtaken(Written().add(LOW, 2).add(HIGH, 3), HIGH, LOW)
    assert found.waits_ms == [990.0]
    assert (found.beyond(500), found.beyond(990)) == (1, 0)


def test_a_higher_priority_that_came_later_was_not_overtaken() -> None:
    later = put("later", 2.5)
    not_stored = put("not-stored", 1, at_s=2.5)
    written = Written().add(LOW, 2).add(later, 3).add(not_stored, 4)
    assert overtaken(written, LOW, later, not_stored).waits_ms == []


def test_another_consumer_s_messages_and_groups_are_not_overtaken() -> None:
    grouped = put("grouped", 1, group="g")
    written = Written().add(LOW, 2).add(HIGH, 3, consumer="two").add(grouped, 4)
    assert overtaken(written, LOW, HIGH, grouped).waits_ms == []


def test_of_three_priorities_each_is_compared_with_all_higher_ones() -> None:
    lowest = put("lowest", 1, band=2)
    found = overtaken(Written().add(lowest, 2).add(LOW, 3).add(HIGH, 4), HIGH, LOW, lowest)
    assert sorted(found.waits_ms) == [990.0, 1_990.0]


def purged(written: Written, *puts: Put) -> judge.PurgeFaults:
    return judge.purge_faults(
        puts, written.hand_outs, called_us=10 * S, returned_us=11 * S, holds_us=5 * S
    )


BEFORE, DURING, AFTER = put("before", 9), put("during", 10.5), put("after", 12)


def test_a_purge_that_holds_has_no_faults() -> None:
    found = purged(Written().add(AFTER, 13), BEFORE, DURING, AFTER)
    assert (found.before, found.between, found.after, found.purged) == (1, 1, 1, 1)
    assert (found.delivered, found.lost) == ([], [])


def test_what_entered_before_may_come_until_the_purge_must_hold_and_no_longer() -> None:
    in_time = purged(Written().add(BEFORE, 15), BEFORE)
    assert (in_time.delivered, in_time.purged, in_time.last_ms) == ([], 0, 5_000.0)
    late = purged(Written().add(BEFORE, 15.000_001), BEFORE)
    assert [one.body for one in late.delivered] == ["before"]


def test_what_entered_after_and_never_came_is_lost() -> None:
    assert purged(Written(), AFTER).lost == [AFTER]


def test_what_was_put_during_the_call_may_become_either() -> None:
    assert not purged(Written(), DURING).lost
    assert not purged(Written().add(DURING, 30), DURING).delivered


def test_lines_survive_their_files(tmp_path: Path) -> None:
    puts = tmp_path / "producer.jsonl"
    puts.write_text("".join(one.to_json() + "\n" for one in [*PUTS, *GROUP, LOW]))
    assert judge.read_puts([puts]) == [*PUTS, *GROUP, LOW]
    outs = tmp_path / "one"
    whole = in_order().hand_outs
    outs.write_text("".join(one.to_json() + "\n" for one in whole) + whole[0].to_json()[:20])
    assert judge.read_hand_outs([outs]) == whole


@pytest.mark.parametrize("line", [b"7", b"{}", b"[1,2]", b'"text"', b"[1"])
def test_a_line_of_another_kind_is_no_hand_out(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        HandOut.from_json(line, "one")


class Mending(SystemClock):
    """A clock that makes the queue while somebody waits.

    Args:
        path: Where the store is to be, and a directory of that name is now.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(0, corrected=False)
        self._path = path
        self.slept = 0

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        if self.slept == 2:
            self._path.rmdir()
            with shardq.connect(f"sqlite:///{self._path}") as db:
                db.queue("mail")


def test_a_process_that_begins_while_the_store_is_away_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    path.mkdir()
    clock = Mending(path)
    with opened(f"sqlite:///{path}", "mail", clock) as queue:
        queue.put("it is back")
    assert clock.slept == 2
    with pytest.raises(UnknownQueue), opened(f"sqlite:///{path}", "parcels", clock):
        pass


JOB = producer.Job(
    "sqlite:///x.db",
    "mail",
    "out",
    "p",
    rate=500,
    seconds=1,
    delays_ms=(0, 2_000),
    groups=25,
    bands=3,
)


def test_a_call_puts_a_group_once_and_a_group_keeps_its_delay_and_priority() -> None:
    kinds: dict[str, set[tuple[float, int]]] = {}
    bodies = set()
    for tick in range(20):
        batch = producer.batch_of(JOB, tick, 1_000)
        assert len(batch) == 50
        bodies |= {item["body"] for item in batch}
        groups = [item["group"] for item in batch if "group" in item]
        assert len(groups) == len(set(groups)) == 25
        for item in batch:
            if "group" in item:
                kind = (item["due"].timestamp(), item["priority"])
                kinds.setdefault(item["group"], set()).add(kind)
    assert len(bodies) == 1_000
    assert len(kinds) == 25
    assert all(len(kind) == 1 for kind in kinds.values())
    assert {band for kind in kinds.values() for _, band in kind} == {0, 1, 2}


def test_plain_messages_have_every_delay_in_every_priority() -> None:
    plain = [item for item in producer.batch_of(JOB, 0, 1_000) if "group" not in item]
    assert {(item["due"].timestamp(), item["priority"]) for item in plain} == {
        (due, band) for due in (1.0, 3.0) for band in (0, 1, 2)
    }


def test_a_promise_is_one_line() -> None:
    assert Promise("crash", "all done", "400 of 400", kept=True).line().split() == (
        ["crash", "all", "done", "ok", "400", "of", "400"]
    )
    assert "NOT OK" in Promise("crash", "all done", "399 of 400", kept=False).line()


@pytest.mark.parametrize("proof", [timers, catchup, lanes, purge, crash])
def test_every_proof_says_what_it_shows(proof: object) -> None:
    assert proof.__doc__


def prove(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent)])
    return subprocess.run(
        [sys.executable, "-m", "proofs", *arguments],
        cwd=directory,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_proof_runs_as_people_run_it(tmp_path: Path) -> None:
    done = prove(tmp_path, "crash", "--json", "--store", f"sqlite:///{tmp_path}/mine.db")
    promises = json.loads(done.stdout)
    assert done.returncode == int(any(one["kept"] is False for one in promises))
    all_done = promises[0]
    assert (all_done["name"], all_done["kept"]) == ("all done", True), done.stderr
    # Nothing is written into the store that was named.
    assert list(tmp_path.iterdir()) == []


def test_the_script_is_bash_that_parses() -> None:
    subprocess.run(["bash", "-n", str(SCRIPTS / "prove")], check=True)
    assert os.access(SCRIPTS / "prove", os.X_OK)


@pytest.mark.parametrize("has_put", [False, True])
def test_a_process_may_be_stopped_before_it_has_begun_and_not_after(
    tmp_path: Path, has_put: bool
) -> None:
    with Stage(None, f"sqlite:///{tmp_path}/jobs.db", tmp_path) as stage:
        one = stage.produce("mail", rate=10, seconds=60)
        if has_put:
            one.out.write_text(put("a", 1).to_json() + "\n")
            with pytest.raises(ShardqError, match="producer-1 ended"):
                stage.stop(one)
        else:
            stage.stop(one)
            assert stage.wait_for_producers() == []
        assert one.process.returncode == -signal.SIGTERM


def test_an_unknown_proof_is_an_error_that_names_those_there_are(tmp_path: Path) -> None:
    done = prove(tmp_path, "everything")
    assert done.returncode == 2
    assert "there is no proof 'everything'; there are timers, catchup" in done.stderr


@pytest.mark.parametrize(
    "given",
    [
        ["--store", "postgres://here"],
        ["--store", "sqlite:///nowhere/jobs.db"],
        ["--store", "sqlite://"],
        ["--keep", "file/below"],
    ],
)
def test_a_place_that_cannot_be_used_is_one_line(tmp_path: Path, given: list[str]) -> None:
    (tmp_path / "file").touch()
    done = prove(tmp_path, "crash", *given)
    assert done.returncode == 2
    assert done.stderr.startswith("prove: ")
    assert done.stderr.count("\n") == 1
