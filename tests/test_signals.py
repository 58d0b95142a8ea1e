"""What a signal's handler finds that interrupts shardq: one clear error, and nothing half done.

Each in a process of its own, whose main thread the handlers run in.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from sqlite_file import run_child

if TYPE_CHECKING:
    from pathlib import Path

START = """
import os, signal, sys, threading
import shardq

signal.alarm(100)
db = shardq.connect(sys.argv[1])
queue = db.queue("mail", lanes=2)
store = queue._home.store

def interrupted(act):
    # A statement raises the signal, so that its handler runs in the middle of this very call.
    said = []

    def handle(*_):
        try:
            said.append(act())
        except shardq.UsageError as error:
            said.append("in the middle of another call" in str(error))

    before = signal.signal(signal.SIGUSR1, handle)
    with store._database.transaction() as connection:
        connection.set_trace_callback(lambda _: said or signal.raise_signal(signal.SIGUSR1))
    queue.put("interrupted")
    with store._database.transaction() as connection:
        connection.set_trace_callback(None)
    signal.signal(signal.SIGUSR1, before)
    return said[0]
"""


def run(directory: Path, script: str) -> list[str]:
    script = START + textwrap.dedent(script)
    return run_child(script, f"sqlite:///{directory}/jobs.db").splitlines()


def test_a_handler_that_interrupts_a_put_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    script = """
    queue.put("first")
    [message] = queue.receive(1, visibility="1h")
    acts = [
        lambda: queue.put("nested"),
        lambda: queue.put_many(["nested"]),
        lambda: queue.receive(1),
        lambda: queue.ack(message),
        lambda: queue.depth(),
        lambda: queue.close(),
        lambda: db.close(),
        lambda: db.queue("another"),
    ]
    print([interrupted(act) for act in acts] == [True] * len(acts))
    # All of it works afterwards, and nothing was lost on the way.
    print(queue.depth(exact=True).total, queue.totals().put)
    queue.ack(message)
    print(len(queue.receive(100)))
    db.close()
    """
    assert run(tmp_path, script) == ["True", "9 9", "8"]


def test_a_handler_may_stop_a_consumer_anywhere_and_not_wait_for_it(tmp_path: Path) -> None:
    script = """
    consumer = shardq.Consumer(queue, lambda message: None, threads=1)
    consumer.start()
    print(interrupted(consumer.join), interrupted(consumer.close))
    print(interrupted(consumer.stop))
    # Anywhere in the middle of another stop, too.
    again = []

    def stop_again(*_event):
        if len(again) < 100:
            again.append(1)
            sys.setprofile(None)
            consumer.stop()
            sys.setprofile(stop_again)

    sys.setprofile(stop_again)
    consumer.stop()
    sys.setprofile(None)
    print(len(again) > 3)
    consumer.join()
    db.close()
    """
    assert run(tmp_path, script) == ["True True", "None", "True"]


def test_a_handler_that_interrupts_no_call_of_shardq_does_as_it_likes(tmp_path: Path) -> None:
    script = """
    said = []

    def handle(*_):
        queue.put("a")
        [message] = queue.receive(1)
        queue.ack(message)
        said.append(message.text)

    signal.signal(signal.SIGUSR1, handle)
    signal.raise_signal(signal.SIGUSR1)
    print(said)
    db.close()
    """
    assert run(tmp_path, script) == ["['a']"]


def test_a_handler_that_interrupts_the_wait_of_receive_may_put_what_ends_it(tmp_path: Path) -> None:
    script = """
    signal.signal(signal.SIGUSR1, lambda *_: queue.put("a"))

    def ring():
        while queue._receiver._engine is None or not queue._receiver._line:
            done.wait(0.01)
        while not done.is_set():
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
            except OSError:
                break
            if done.wait(0.2):
                break

    done = threading.Event()
    ringer = threading.Thread(target=ring)
    ringer.start()
    seen = []
    while not seen:
        try:
            seen = queue.receive(1, wait="60s")
        except shardq.UsageError:
            # It came in the middle of a read.
            pass
    done.set()
    ringer.join()
    print(seen[0].text)
    db.close()
    """
    assert run(tmp_path, script) == ["a"]


def test_what_a_handler_raises_leaves_no_lock_and_no_transaction(tmp_path: Path) -> None:
    script = """
    import random

    class Stop(BaseException):
        pass

    def stop(*_):
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise Stop

    signal.alarm(0)
    signal.signal(signal.SIGALRM, stop)
    chance = random.Random(1)
    stopped = 0
    for n in range(60):
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + chance.random() / 200)
            while True:
                queue.put_many(["a", "b"])
                queue.put("c")
        except Stop:
            stopped += 1
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    print(stopped, store._database._writer.connection.in_transaction)
    # Another thread finds every lock free, this one as well.
    other = threading.Thread(target=lambda: (queue.put("d"), queue.receive(1), queue.totals()))
    other.start()
    other.join()
    db.close()
    print("closed")
    """
    assert run(tmp_path, script) == ["60 False", "closed"]


def test_what_a_handler_raises_at_any_call_of_a_call_leaves_no_lock(tmp_path: Path) -> None:
    script = """
    class Stop(BaseException):
        pass

    def raises_at(place, act):
        # Where a signal's handler may run: as a function begins, and after a call of C.
        left = [place]

        def stop(_frame, event, _arg):
            if event in ("call", "c_return"):
                left[0] -= 1
                if not left[0]:
                    raise Stop

        sys.setprofile(stop)
        try:
            act()
        except (Stop, RuntimeError, shardq.ShardqError):
            # Of the latter two, those that Python makes of it where it waits for a thread.
            pass
        finally:
            sys.setprofile(None)
        return left[0] <= 0

    queue.receive(1)
    acts = {
        "put": lambda: queue.put("a"),
        "receive": lambda: queue.receive(1, wait="1ms"),
        "many": lambda: queue.put_many(["a", "b"]),
        "totals": lambda: queue.totals(),
    }
    for name, act in acts.items():
        place = 1
        while raises_at(place, act) and place < 1_500:
            place += 1 if place < 200 else 7
            locks.refuse_within()
            assert not store._database._writer.connection.in_transaction, name
    other = threading.Thread(target=lambda: (queue.put("d"), queue.receive(1), queue.totals()))
    other.start()
    other.join()
    print("free")
    db.close()
    """
    assert run(tmp_path, "from shardq import locks\n" + textwrap.dedent(script)) == ["free"]


def test_what_an_interrupted_receive_had_taken_the_next_one_returns(tmp_path: Path) -> None:
    script = """
    def interrupt(frame, event, _arg):
        if event == "call" and frame.f_code.co_name == "_plan":
            raise KeyboardInterrupt

    queue.put("a")
    sys.setprofile(interrupt)
    try:
        queue.receive(1)
    except KeyboardInterrupt:
        sys.setprofile(None)
    [message] = queue.receive(1)
    print(message.text, message.attempt)
    db.close()
    """
    assert run(tmp_path, script) == ["a 1"]


def test_a_fork_in_the_middle_of_a_write_waits_for_nobody_and_says_so(tmp_path: Path) -> None:
    script = """
    def fork():
        child = os.fork()
        if child == 0:
            os._exit(0)
        return os.waitpid(child, 0)[1]

    try:
        with store._database.transaction() as connection:
            # As a handler does that interrupts it here.
            print(fork())
    except shardq.StoreTimeout as error:
        print("by a fork in a signal's handler; maybe written" in str(error))
    queue.put("after")
    print(queue.depth(exact=True).total)
    db.close()
    """
    assert run(tmp_path, script) == ["0", "True", "1"]
