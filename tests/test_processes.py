"""The supervisor of worker processes, each test with real ones: what ends, and what comes after."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import pytest
from supervised import Supervised, wait_for, wait_until_gone

from shardq.child import resident_bytes
from shardq.errors import UsageError
from shardq.tasks.processes import Supervisor

if TYPE_CHECKING:
    from pathlib import Path

ENDED_WELL = 'outcome: [0, "", 0, false]'

# Ends that are asked for --------------------------------------------------------------------------


def test_a_supervisor_starts_as_many_as_asked_and_ends_all_gracefully(tmp_path: Path) -> None:
    with Supervised(tmp_path, processes=3) as it:
        numbers = {it.ready() for _ in range(3)}
        assert len(numbers) == 3
        left = it.stop()
    assert {line for line in left if line.startswith("ended")} == {f"ended {n}" for n in numbers}
    assert left[-1] == ENDED_WELL


def test_ctrl_c_reaches_the_supervisor_alone_which_asks_each_once(tmp_path: Path) -> None:
    with Supervised(tmp_path, processes=2) as it:
        numbers = {it.ready() for _ in range(2)}
        os.killpg(it.process.pid, signal.SIGINT)
        left = it.rest()
    told = sorted(line for line in left if line.startswith("signal"))
    assert told == sorted(f"signal {number} SIGTERM" for number in numbers)
    assert left[-1] == ENDED_WELL


def test_a_second_signal_is_passed_on(tmp_path: Path) -> None:
    with Supervised(tmp_path, "line.ready(); say('ready', me); wait(); wait()") as it:
        it.ready()
        it.process.send_signal(signal.SIGTERM)
        it.expect("signal .* SIGTERM")
        it.process.send_signal(signal.SIGTERM)
        assert it.expect("signal .* (SIGINT)")
        assert it.rest() == [ENDED_WELL]


STUBBORN = """
import subprocess
signal.signal(signal.SIGTERM, lambda *_: say("heard"))
within = subprocess.Popen(["sleep", "600"])
line.ready()
say("within", within.pid)
say("ready", me)
while True:
    signal.pause()
"""


def test_what_still_works_when_the_deadline_is_over_is_killed_with_its_group(
    tmp_path: Path,
) -> None:
    constants = {"_MARGIN_US": 100_000}
    with Supervised(tmp_path, STUBBORN, constants=constants, deadline_s=0.1) as it:
        within = int(it.expect(r"within (\d+)"))
        number = it.ready()
        left = it.stop()
    assert left == [
        "heard",
        f"told: process {number} still worked when its time to end was over, and was killed; its "
        "jobs are delivered again.",
        'outcome: [0, "", 1, false]',
    ]
    wait_until_gone(within)


def test_a_stop_ends_processes_that_have_not_begun_yet(tmp_path: Path) -> None:
    with Supervised(tmp_path, "say('importing'); signal.signal(15, signal.SIG_DFL); wait()") as it:
        it.expect("importing")
        assert it.stop()[-1] == ENDED_WELL


# Ends that are not --------------------------------------------------------------------------------


def test_a_process_that_is_killed_has_another_in_its_place_at_once(tmp_path: Path) -> None:
    with Supervised(tmp_path, processes=2, constants={"_SETTLED_US": 0}) as it:
        first, second = it.ready(), it.ready()
        os.kill(first, signal.SIGKILL)
        it.expect(
            f"told: process {first} was ended by SIGKILL .out of memory, where nobody killed it.; "
            "another takes its place.$"
        )
        third = it.ready()
        left = it.stop()
    assert sorted(line for line in left if line.startswith("ended")) == sorted(
        f"ended {number}" for number in (second, third)
    )


def test_processes_that_die_soon_are_replaced_by_delays_that_double_up_to_a_bound(
    tmp_path: Path,
) -> None:
    constants = {"_DELAY_MIN_US": 1_000, "_DELAY_MAX_US": 5_000}
    with Supervised(tmp_path, "line.ready(); os._exit(0)", constants=constants) as it:
        delays = [it.expect(r"exited with 0; .* place in (\S+)\.$") for _ in range(5)]
        assert delays == ["1ms", "2ms", "4ms", "5ms", "5ms"]
        assert it.stop()[-1] == ENDED_WELL


def test_what_a_process_has_started_is_ended_with_it(tmp_path: Path) -> None:
    script = """
    import subprocess
    within = subprocess.Popen(["sleep", "600"])
    line.ready()
    say("within", within.pid)
    os._exit(3) if not os.path.exists("died") and not open("died", "w").close() else wait()
    """
    with Supervised(tmp_path, script) as it:
        within = int(it.expect(r"within (\d+)"))
        it.expect("exited with 3; another takes its place in 500ms")
        wait_until_gone(within)
        it.expect("within")
        assert it.stop()[-1] == ENDED_WELL


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers to play process 1")
def test_a_supervisor_that_is_process_1_reaps_what_others_have_left(tmp_path: Path) -> None:
    script = """
    import subprocess
    # Its parent ends, and it has a group of its own.
    parent = (
        "import os, subprocess; one = subprocess.Popen(['sleep', '600'], process_group=0);"
        "print(one.pid, flush=True); os._exit(0)"
    )
    made = subprocess.Popen([sys.executable, "-c", parent])
    made.wait()
    line.ready()
    say("ready", me)
    wait()
    """
    with Supervised(tmp_path, script, inherits=True) as it:
        stranger = int(it.expect(r"^(\d+)$"))
        it.ready()
        os.kill(stranger, signal.SIGKILL)
        wait_for(lambda: not os.path.exists(f"/proc/{stranger}"), "there is no zombie")
        assert it.stop()[-1] == ENDED_WELL


def test_a_process_that_has_nothing_left_to_do_is_not_replaced(tmp_path: Path) -> None:
    with Supervised(tmp_path, "line.ready(); line.done()", processes=2) as it:
        assert it.rest() == [ENDED_WELL]


def test_one_that_has_nothing_left_and_does_not_end_is_killed(tmp_path: Path) -> None:
    constants = {"_MARGIN_US": 100_000}
    script = "line.ready(); line.done(); threading.Event().wait()"
    with Supervised(tmp_path, script, constants=constants, deadline_s=0.1) as it:
        assert it.rest()[-1] == 'outcome: [0, "", 1, false]'


def test_a_process_that_died_has_another_even_where_the_rest_has_nothing_left(
    tmp_path: Path,
) -> None:
    script = """
    line.ready()
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(me, signal.SIGKILL)
    line.done()
    say("done", me)
    """
    with Supervised(tmp_path, script) as it:
        it.expect("was ended by SIGKILL")
        it.expect("done")
        assert it.rest() == [ENDED_WELL]


def test_a_process_that_answers_nothing_is_killed_and_replaced(tmp_path: Path) -> None:
    constants = {"_ASK_EVERY_US": 20_000, "_UNANSWERED_MAX": 150}
    with Supervised(tmp_path, constants=constants) as it:
        number = it.ready()
        os.kill(number, signal.SIGSTOP)
        it.expect(f"process {number} answered nothing for a minute and was killed: something holds")
        it.expect(f"process {number} was killed; another takes its place")
        assert it.ready() != number
        assert it.stop()[-1] == ENDED_WELL


def test_where_the_supervisor_is_killed_its_processes_end_gracefully(tmp_path: Path) -> None:
    with Supervised(tmp_path, processes=2) as it:
        numbers = {it.ready() for _ in range(2)}
        it.process.kill()
        left = it.rest()
    assert set(left) == {f"ended {number}" for number in numbers}


def test_where_the_supervisor_is_killed_no_process_works_on_past_its_deadline(
    tmp_path: Path,
) -> None:
    script = "lines.MARGIN_S = 0.1; line.ready(); say('ready', me); threading.Event().wait()"
    with Supervised(tmp_path, script) as it:
        number = it.ready()
        it.process.kill()
        assert it.rest() == []
    wait_until_gone(number)


def test_a_process_whose_supervisor_died_before_it_was_ready_ends_too(tmp_path: Path) -> None:
    script = """
    line._stop = None
    say("importing")
    while not line._is_lost:
        pass
    line.on_lost(lambda: say("stops", me), 0.1)
    """
    with Supervised(tmp_path, script) as it:
        it.expect("importing")
        it.process.kill()
        assert it.rest()[0].startswith("stops ")


# Processes that cannot begin ----------------------------------------------------------------------


def test_an_app_that_cannot_be_imported_ends_all_with_its_code_and_sentence(tmp_path: Path) -> None:
    script = "say('tries'); line.failed(2, 'module app cannot be imported.'); sys.exit(2)"
    with Supervised(tmp_path, script, processes=2) as it:
        *lines, outcome = it.rest()
    # The other may have been asked to end before it failed, and nothing is told.
    assert 1 <= lines.count("tries") <= 2
    assert not any(line.startswith("told:") for line in lines)
    assert outcome == 'outcome: [2, "module app cannot be imported.", 0, false]'


def test_where_others_work_one_that_cannot_begin_is_tried_again(tmp_path: Path) -> None:
    script = """
    if os.path.exists("broken"):
        os.unlink("broken")
        line.failed(2, "the app is broken.")
        sys.exit(2)
    line.ready()
    say("ready", me)
    wait()
    """
    with Supervised(tmp_path, script, processes=2, constants={"_SETTLED_US": 0}) as it:
        first = it.ready()
        it.ready()
        (tmp_path / "broken").touch()
        os.kill(first, signal.SIGKILL)
        it.expect(r"told: the app is broken; it is tried again in 500ms\.$")
        it.ready()
        assert it.stop()[-1] == ENDED_WELL


def test_a_process_that_is_long_not_ready_is_told_of_once(tmp_path: Path) -> None:
    constants = {"_ASK_EVERY_US": 20_000, "_UNANSWERED_MAX": 1_000_000, "_BEGIN_US": 500_000}
    script = "wait()"
    with Supervised(tmp_path, script, constants=constants) as it:
        it.expect(
            r"told: process \d+ is not ready after 500ms: its app is still imported, or its st"
        )
        left = it.stop()
    assert [line for line in left if not line.startswith("signal ")] == [ENDED_WELL]


def test_processes_that_die_before_they_are_ready_are_tried_three_times(tmp_path: Path) -> None:
    script = "say('tries'); os.kill(me, signal.SIGSEGV)"
    with Supervised(tmp_path, script, constants={"_DELAY_MIN_US": 1_000}) as it:
        lines = it.rest()
    assert lines.count("tries") == 3
    assert "ended by SIGSEGV before it was ready, as others did." in lines[-1]
    assert lines[-1].startswith("error: ShardqError no process can begin: process ")


def test_a_program_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    told: list[str] = []
    supervisor = Supervisor([str(tmp_path / "none")], processes=1, deadline_s=1, report=told.append)
    supervisor._start_due()
    assert told == [
        f"a process cannot be started: [Errno 2] No such file or directory: '{tmp_path}/none'; it "
        "is tried again in 500ms."
    ]


@pytest.mark.parametrize("count", [0, 65])
def test_there_are_as_many_processes_as_a_machine_can_have(count: int) -> None:
    with pytest.raises(UsageError, match="processes must be 1 to 64, not"):
        Supervisor(["true"], processes=count, deadline_s=1, report=print)


# Processes that are replaced while they work ------------------------------------------------------


def test_a_hangup_of_its_terminal_ends_all_gracefully(tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with Supervised(tmp_path, processes=2, stdin=theirs) as it:
        before = {it.ready(), it.ready()}
        os.close(theirs)
        # One to its session, another to the group that has the terminal.
        it.process.send_signal(signal.SIGHUP)
        it.expect("signal .* SIGTERM")
        it.process.send_signal(signal.SIGHUP)
        os.close(ours)
        assert it.rest()[-1] == ENDED_WELL
    signals = sorted(line for line in it.lines if line.startswith("signal "))
    assert signals == sorted(f"signal {one} SIGTERM" for one in before)


def test_a_hangup_that_is_ignored_stays_so(tmp_path: Path) -> None:
    with Supervised(tmp_path, ignores=True) as it:
        it.ready()
        it.process.send_signal(signal.SIGHUP)
        assert it.stop()[-1] == ENDED_WELL
    assert not any("SIGHUP" in line for line in it.lines)


def test_one_that_overran_has_another_at_once_and_ends_gracefully(tmp_path: Path) -> None:
    script = """
    line.ready()
    say("ready", me)
    if not os.path.exists("overran"):
        open("overran", "w").close()
        line.overrun("task app.slow runs for 3 s, over its limit of 1 s")
    wait()
    say("ended", me)
    """
    with Supervised(tmp_path, script) as it:
        first = it.ready()
        it.expect(
            f"told: process {first}: task app.slow runs for 3 s, over its limit of 1 s; another "
            r"takes its place\.$"
        )
        second = it.ready()
        assert it.stop()[-1] == ENDED_WELL
        assert f"ended {first}" in it.lines
        assert f"ended {second}" in it.lines


def test_a_hangup_replaces_all_processes_gracefully(tmp_path: Path) -> None:
    with Supervised(tmp_path, processes=2) as it:
        before = {it.ready(), it.ready()}
        it.process.send_signal(signal.SIGHUP)
        it.expect(r"told: SIGHUP: the processes are replaced\.$")
        after = {it.ready(), it.ready()}
        assert not before & after
        assert it.stop()[-1] == ENDED_WELL
    ended = {int(line.split()[1]) for line in it.lines if line.startswith("ended ")}
    assert ended == before | after
    # Each earlier process was asked to end once.
    assert all(it.lines.count(f"signal {one} SIGTERM") == 1 for one in before)


def test_one_that_has_grown_beyond_its_memory_has_another_and_ends_gracefully(
    tmp_path: Path,
) -> None:
    script = """
    line.ready()
    say("ready", me)
    if not os.path.exists("grown"):
        open("grown", "w").close()
        kept = bytearray(os.urandom(200_000_000))
    wait()
    say("ended", me)
    """
    constants = {"_SETTLED_US": 0, "_MEASURE_EVERY_US": 20_000}
    with Supervised(tmp_path, script, constants=constants, memory_bytes=150_000_000) as it:
        first = it.ready()
        it.expect(rf"told: process {first} has grown to \d+MB; another takes its place\.$")
        assert it.ready() != first
        assert it.stop()[-1] == ENDED_WELL
        assert f"ended {first}" in it.lines


def test_a_bound_of_memory_that_a_process_has_before_any_job_is_an_error(tmp_path: Path) -> None:
    with Supervised(tmp_path, memory_bytes=1_000_000) as it:
        assert it.rest()[-1].startswith("error: UsageError a process has ")


def test_the_memory_of_a_process_is_told_as_the_system_counts_it() -> None:
    assert 5_000_000 < (resident_bytes(os.getpid()) or 0) < 5_000_000_000
    assert resident_bytes(1 << 30) is None


# What they print ----------------------------------------------------------------------------------


def test_lines_of_several_processes_are_never_torn(tmp_path: Path) -> None:
    script = """
    from shardq.cli import streams
    streams.take_over()
    line.ready()
    letter = chr(97 + me % 26)
    for _ in range(300):
        print(letter * 1_500, letter * 1_500)
        print(letter * 1_500, letter * 1_500, file=sys.stderr)
    sys.stdout.flush()
    line.done()
    """
    with Supervised(tmp_path, script, processes=3) as it:
        lines = it.rest()
    assert lines.pop() == ENDED_WELL
    assert len(lines) == 3 * 600
    assert {len(set(line)) for line in lines} == {2}
    assert {len(line) for line in lines} == {3_001}


# Files that are watched ---------------------------------------------------------------------------

OFTEN = {"_LOOK_EVERY_US": 50_000}
IMPORTS = """
sys.path.insert(0, "watched")
try:
    import app
except Exception as error:
    line.failed(2, f"{type(error).__name__} in app.")
    sys.exit(2)
line.ready()
say("works", app.VERSION, me)
wait()
say("ended", me)
"""


def test_processes_are_replaced_when_a_file_changes_and_wait_where_it_is_broken(
    tmp_path: Path,
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    app = watched / "app.py"
    app.write_text("VERSION = 1")
    with Supervised(tmp_path, IMPORTS, constants=OFTEN, reload=watched) as it:
        worked = {it.expect("works 1 (.*)")}
        # The same size and the same second: stored bytecode of the old file would count as valid.
        (watched / "app.tmp").write_text("VERSION = 2")
        second_ns = app.stat().st_mtime_ns // 10**9 * 10**9
        os.utime(watched / "app.tmp", ns=(second_ns, second_ns))
        (watched / "app.tmp").replace(app)
        it.expect(r"told: app.py changed; the processes are replaced\.$")
        worked.add(it.expect("works 2 (.*)"))
        app.write_text("VERSION = ")
        it.expect("app.py changed")
        it.expect("told: SyntaxError in app. It is tried again when a file changes.")
        # Like an editor that replaces the file in one step.
        (watched / "app.tmp").write_text("from other import VERSION")
        (watched / "app.tmp").replace(app)
        it.expect("app.py changed")
        it.expect("told: ModuleNotFoundError in app. It is tried again when a file changes.")
        (watched / "other.py").write_text("VERSION = 4")
        it.expect("other.py changed")
        worked.add(it.expect("works 4 (.*)"))
        (watched / "other.py").unlink()
        it.expect("other.py changed")
        it.expect("told: ModuleNotFoundError in app. It is tried again when a file changes.")
        assert it.stop()[-1] == ENDED_WELL
    assert {line.removeprefix("ended ") for line in it.lines if line.startswith("ended ")} == worked


def test_an_app_that_is_broken_at_first_is_waited_for_where_files_are_watched(
    tmp_path: Path,
) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "app.py").write_text("VERSION = ")
    with Supervised(tmp_path, IMPORTS, processes=2, constants=OFTEN, reload=watched) as it:
        it.expect("told: SyntaxError in app. It is tried again when a file changes.")
        (watched / "app.py").write_text("VERSION = 2")
        it.expect("works 2")
        it.expect("works 2")
        # Two could not begin, and one line says so.
        assert sum("SyntaxError" in line for line in it.lines) == 1
        assert it.stop()[-1] == ENDED_WELL
    script = IMPORTS.replace("import app", "import none")
    with Supervised(tmp_path, script, reload=watched) as it:
        it.expect("ModuleNotFoundError in app")
        # Nothing runs, and it ends all the same.
        assert it.stop() == [ENDED_WELL]


def test_a_file_that_changes_whenever_the_app_is_imported_is_told(tmp_path: Path) -> None:
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "app.py").write_text(
        "import os, pathlib\nVERSION = 1\n"
        "pathlib.Path(__file__).with_name('gen.py').write_text(f'PID = {os.getpid():020}')"
    )
    with Supervised(tmp_path, IMPORTS, constants=OFTEN, reload=watched) as it:
        it.expect(
            r"told: gen\.py has changed 3 times in a row soon after a start, as what an app writes "
            r"when it is imported; leave it out by --reload-exclude gen\.py\.$"
        )
        assert sum("gen.py changed" in line for line in it.lines) == 3
        assert it.stop()[-1] == ENDED_WELL
