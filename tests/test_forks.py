"""What is the parent's stays the parent's, and a child works with the same objects for itself.

Each in a process of its own, on a file: what forks here would be the test's process otherwise.
"""

from __future__ import annotations

import sys
import textwrap
from typing import TYPE_CHECKING

import pytest
from sqlite_file import run_child

if TYPE_CHECKING:
    from pathlib import Path

START = """
import os, signal, sys, threading, warnings
import shardq
from shardq import locks
from shardq.records.membership import heartbeats
from shardq.stores.tables import STATS

# Python 3.12 warns of any fork beside threads; that it works with ours is the point.
warnings.simplefilter("ignore", DeprecationWarning)
signal.alarm(100)
db = shardq.connect(sys.argv[1])
queue = db.queue("mail", lanes=2)
store = queue._home.store

def fork(act):
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    # Not a second time what comes after.
    status = 1
    signal.alarm(60)
    try:
        act()
        status = 0
    except SystemExit:
        # Whatever runs at exit runs.
        status = None
        raise
    finally:
        if status is not None:
            os._exit(status)

def held():
    leases = queue._receiver._engine.leases.held()
    # Who names a holder that nobody had gets nothing, and is told what there is.
    unseen = {lease.shard: "nobody" for lease in leases}
    states = store.take(unseen, lock="nobody's", holder="nobody", window=0, ttl_ms=60_000)
    return len(leases), sum(state.lock is not None for state in states.values())
"""


def run(directory: Path, script: str) -> list[str]:
    script = START + textwrap.dedent(script)
    return run_child(script, f"sqlite:///{directory}/jobs.db").splitlines()


@pytest.mark.parametrize("end", ["db.close()", "sys.exit(0)", "queue.close()"])
def test_a_child_s_end_leaves_its_parent_s_leases_and_membership(tmp_path: Path, end: str) -> None:
    script = f"""
    queue.put_many(str(n) for n in range(20))
    queue.receive(1)
    before = held(), sorted(heartbeats(store, "mail"))
    assert before[0][0] > 0
    assert fork(lambda: {end}) == 0
    print(before == (held(), sorted(heartbeats(store, "mail"))))
    seen = [message.text for message in queue.receive(100)]
    print(len(seen))
    db.close()
    """
    assert run(tmp_path, script) == ["True", "19"]


def test_a_child_stores_nothing_of_what_its_parent_has_counted(tmp_path: Path) -> None:
    script = """
    queue.put("of the parent")
    assert fork(lambda: (queue.put("of the child"), db.close())) == 0
    assert fork(db.close) == 0
    queue.put("of the parent")
    print(queue.totals().put, len({member for _, member in store.notes(STATS, ("mail",))}))
    db.close()
    """
    assert run(tmp_path, script) == ["3 2"]


def test_a_child_puts_receives_and_settles_with_its_parent_s_objects(tmp_path: Path) -> None:
    script = """
    queue.put("a")
    [message] = queue.receive(1)
    queue.put("b")

    def child():
        queue.ack(message)
        queue.put("c")
        seen = []
        shardq.Consumer(queue, lambda m: seen.append(m.text), threads=1).run(until_empty=True)
        print(sorted(seen), flush=True)
        db.close()

    # What the parent holds, others get when it has released it.
    queue.close()
    assert fork(child) == 0
    try:
        queue.ack(message)
    except shardq.StaleReceipt:
        print(queue.depth(exact=True).total)
    db.close()
    """
    assert run(tmp_path, script) == ["['b', 'c']", "0"]


def test_a_child_calls_from_asyncio_in_threads_of_its_own(tmp_path: Path) -> None:
    script = """
    import asyncio
    from shardq import App, aio

    app = App(sys.argv[1], queue="mail")

    @app.task
    def welcome(user: str) -> None: ...

    def put(user):
        asyncio.run(aio.task(welcome).put(user))

    put("ada")
    assert fork(lambda: (put("bob"), app.close())) == 0
    put("cy")
    print(queue.depth(exact=True).total)
    db.close()
    """
    assert run(tmp_path, script) == ["3"]


def test_a_child_waits_for_no_lock_that_a_thread_held_at_the_fork(tmp_path: Path) -> None:
    script = """
    queue.put("a")
    [message] = queue.receive(1)
    consumer = shardq.Consumer(queue, print, threads=1)
    consumer.start()
    # A fork waits for these, so that they are nobody's then.
    from shardq.stores.sqlite.database import _forks
    awaited = {id(channel.lock) for channel in store._database._channels} | {id(_forks._lock)}
    taken, over = threading.Event(), threading.Event()

    def hold_all():
        for lock in list(locks._locks.values()):
            if hasattr(lock, "acquire") and id(lock) not in awaited:
                lock.acquire()
        taken.set()
        over.wait()

    threading.Thread(target=hold_all, daemon=True).start()
    taken.wait()

    def child():
        consumer.stop()
        queue.ack(message)
        queue.put("b")
        queue.receive(1)
        db.queue("another").put_many(["c"])
        queue.depth()
        queue.totals()
        db.close()

    print(fork(child), flush=True)
    os._exit(0)
    """
    assert run(tmp_path, script) == ["0"]


def test_a_consumer_that_runs_in_the_parent_does_not_run_in_its_child(tmp_path: Path) -> None:
    script = """
    done = threading.Event()
    consumer = shardq.Consumer(queue, lambda message: done.set(), threads=2)
    consumer.start()

    def child():
        consumer.stop()
        consumer.join()
        consumer.close()
        for act in (consumer.start, consumer.run, consumer.step):
            try:
                act()
            except shardq.UsageError as error:
                print("that this one was forked from" in str(error), flush=True)
        sys.exit(7)

    print(fork(child))
    queue.put("a")
    print(done.wait(60))
    consumer.stop()
    consumer.join()
    db.close()
    """
    assert run(tmp_path, script) == ["True"] * 3 + ["7", "True"]


def test_a_consumer_that_is_stepped_by_the_parent_is_not_its_child_s_to_step(
    tmp_path: Path,
) -> None:
    script = """
    queue.put("a")
    seen = []
    consumer = shardq.Consumer(queue, lambda message: seen.append(message.text))
    consumer.step()
    before = sorted(heartbeats(store, "mail"))

    def child():
        consumer.close()
        try:
            consumer.step()
        except shardq.UsageError:
            sys.exit(7)

    print(fork(child), before == sorted(heartbeats(store, "mail")), seen)
    consumer.step()
    consumer.close()
    db.close()
    """
    assert run(tmp_path, script) == ["7 True ['a']"]


def test_a_consumer_that_waits_for_a_fork_is_another_member_in_each_child(tmp_path: Path) -> None:
    script = """
    made, named = (
        shardq.Consumer(queue, print, threads=1, member=member) for member in (None, "mailer")
    )

    def child():
        print(made.member, flush=True)
        print(named.member == f"mailer:{os.getpid()}", flush=True)
        queue.put("x", delay="1h")
        made.start()
        made.stop()
        made.join()

    print(made.member, flush=True)
    assert fork(child) == fork(child) == 0
    db.close()
    """
    own, first, is_named, second, *rest = run(tmp_path, script)
    assert len({own, first, second}) == 3
    assert [is_named, *rest] == ["True", "True"]


def test_a_child_of_a_handler_ends_with_it_and_hands_out_nothing(tmp_path: Path) -> None:
    script = """
    queue.put_many(["return", "exit", "raise", "text"])
    ends = {}

    def handle(message):
        print(message.text, flush=True)
        child = os.fork()
        if child:
            ends[message.text] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        elif message.text == "exit":
            sys.exit(3)
        elif message.text == "raise":
            sys.stderr = open(os.devnull, "w")
            raise ValueError
        elif message.text == "text":
            sys.stderr = open(os.devnull, "w")
            sys.exit("why")

    shardq.Consumer(queue, handle, threads=1).run(until_empty=True)
    print(sorted(ends.items()), queue.totals().acked)
    db.close()
    """
    *handled, ends = run(tmp_path, script)
    assert sorted(handled) == ["exit", "raise", "return", "text"]
    assert ends == "[('exit', 3), ('raise', 1), ('return', 0), ('text', 1)] 4"


@pytest.mark.parametrize("stream", ["None", "closed"])
def test_a_child_of_a_handler_ends_with_it_where_nothing_can_be_written(
    tmp_path: Path, stream: str
) -> None:
    script = f"""
    queue.put("a")
    ends = []
    closed = open(os.devnull, "w")
    closed.close()

    def handle(message):
        child = os.fork()
        if child:
            ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return
        sys.stdout = sys.stderr = {stream}
        sys.exit("why")

    shardq.Consumer(queue, handle, threads=1).run(until_empty=True)
    print(ends, queue.totals().acked)
    db.close()
    """
    assert run(tmp_path, script) == ["[1] 1"]


@pytest.mark.skipif(
    sys.version_info >= (3, 13),
    reason="Python 3.13 ends a child whose parent has not called PyOS_BeforeFork",
)
def test_a_child_that_c_has_forked_works_and_complains_of_nothing(tmp_path: Path) -> None:
    assert run(tmp_path, forked_by_c()) == ["7 2"]


def test_a_child_that_c_has_forked_with_all_hooks_works_as_one_of_python(tmp_path: Path) -> None:
    script = forked_by_c(before="python.PyOS_BeforeFork()", after="python.PyOS_AfterFork_Parent()")
    assert run(tmp_path, script) == ["7 2"]


def forked_by_c(*, before: str = "pass", after: str = "pass") -> str:
    """A fork as uWSGI makes it: of Python's hooks the child's alone is sure to be called."""
    return f"""
    import ctypes

    sys.unraisablehook = lambda seen: print("ignored:", seen.exc_value, flush=True)
    queue.put("a")
    python = ctypes.PyDLL(None)
    {before}
    child = python.fork()
    if child == 0:
        status = 1
        try:
            python.PyOS_AfterFork_Child()
            queue.put("b")
            status = 7
        finally:
            os._exit(status)
    {after}
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), queue.depth(exact=True).total)
    db.close()
    """


def test_what_a_signal_s_handler_raises_while_a_fork_waits_leaves_no_lock(tmp_path: Path) -> None:
    script = """
    def stop(*_):
        raise KeyboardInterrupt

    def hold():
        with last.lock:
            held.set()
            while not ignored:
                # The fork waits for this, and has the other one.
                if len(store._database._halted) == 1:
                    os.kill(os.getpid(), signal.SIGUSR1)
                over.wait(0.01)

    _, last = store._database._channels
    held, over, ignored = threading.Event(), threading.Event(), []
    sys.unraisablehook = lambda seen: ignored.append(seen.exc_value)
    signal.signal(signal.SIGUSR1, stop)
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    fork(int)
    holder.join()
    other = threading.Thread(target=lambda: (queue.put("a"), queue.receive(1)), daemon=True)
    other.start()
    other.join(50)
    print(type(ignored[0]).__name__, other.is_alive())
    """
    assert run(tmp_path, script) == ["KeyboardInterrupt False"]


def test_a_pool_of_processes_leaves_what_its_maker_received(tmp_path: Path) -> None:
    script = """
    import multiprocessing

    queue.put_many(str(n) for n in range(20))
    queue.receive(1)
    before = held()
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(str, range(4))
    print(before == held())
    db.close()
    """
    assert run(tmp_path, script) == ["True"]


@pytest.mark.parametrize(
    "connects",
    ["", "global db; db = shardq.connect(sys.argv[1]); "],
    ids=["inherited", "own"],
)
def test_a_process_of_multiprocessing_stores_at_its_end_what_it_counted(
    tmp_path: Path, connects: str
) -> None:
    script = f"""
    import multiprocessing

    db.close()
    db = shardq.connect(sys.argv[1])

    def put():
        {connects}db.queue("mail").put("of the child")

    child = multiprocessing.get_context("fork").Process(target=put)
    child.start()
    child.join()
    print(db.queue("mail").totals().put, child.exitcode)
    db.close()
    """
    assert run(tmp_path, script) == ["1 0"]


def test_a_call_that_waits_at_a_fork_fails_in_the_child_and_goes_on_in_its_parent(
    tmp_path: Path,
) -> None:
    script = """
    from shardq.engine.handing.caller import ReceiveCall

    over = threading.Event()
    caller = ReceiveCall(1, 60_000, 0, on_over=over.set)
    queue._receiver.ask(caller)

    def child():
        try:
            caller.answer()
        except shardq.UsageError as error:
            print("was forked" in str(error), flush=True)
        db.queue("another").put("b")
        print([one.text for one in db.queue("another").receive(1, wait="60s")], flush=True)
        db.close()

    assert fork(child) == 0
    queue.put("a")
    over.wait(60)
    print([one.text for one in caller.answer()])
    db.close()
    """
    assert run(tmp_path, script) == ["True", "['b']", "['a']"]


@pytest.mark.cassandra
def test_a_child_leaves_its_parent_s_cluster_alone(cassandra_url: str) -> None:
    script = (
        START
        + """
from shardq.engine import receiver

# Longer than three children need to connect, on a busy machine too: leases are held until then.
receiver._LINGER_US = 600_000_000
queue = db.queue(f"fork-{os.getpid()}", lanes=2)
queue.put_many(str(n) for n in range(20))
queue.receive(1)
before = held(), sorted(heartbeats(store, queue.name))
for end in (db.close, sys.exit, lambda: (queue.put("c"), queue.receive(1), sys.exit())):
    assert fork(end) == 0
    mine = [name for name in sorted(heartbeats(store, queue.name)) if name in before[1]]
    print(before == (held(), mine), flush=True)
stop = threading.Event()

def receive():
    while not stop.is_set():
        queue.ack(*queue.receive(1))

threads = [threading.Thread(target=receive) for _ in range(2)]
for thread in threads:
    thread.start()
print([fork(lambda: (queue.put("d"), sys.exit(7))) for _ in range(2)])
stop.set()
for thread in threads:
    thread.join(60)
queue.drop()
db.close()
"""
    )
    assert run_child(script, cassandra_url).splitlines() == ["True"] * 3 + ["[7, 7]"]


def test_a_worker_that_was_made_before_a_fork_runs_all_kinds_of_jobs_in_the_child(
    tmp_path: Path,
) -> None:
    script = """
    from shardq import App
    from shardq.tasks import Worker

    app = App(db)

    @app.task(name="limited", timeout="1m")
    def limited():
        print("limited\\n", end="", flush=True)

    @app.task(name="coroutine")
    async def coroutine():
        print("coroutine\\n", end="", flush=True)

    @app.task(name="kept", keep="1h")
    def kept():
        print("kept\\n", end="", flush=True)

    @app.task(name="batch", batch=2)
    def batch(items: list[int]):
        print("batch\\n", end="", flush=True)

    for task in (limited, coroutine, kept):
        task.put()
    batch.put(1)
    worker = Worker(app)
    print(fork(lambda: worker.run(until_empty=True)), app.queue("default").depth(exact=True).total)
    """
    assert sorted(run(tmp_path, script)) == ["0 0", "batch", "coroutine", "kept", "limited"]
