"""Locks that a forked child finds free, and that a thread never waits for while it holds them."""

from __future__ import annotations

import threading

import pytest
from sqlite_file import run_child

from shardq import UsageError, locks

FORK = """
    import os, signal, sys, threading, warnings
    from shardq import locks

    # Python 3.12 warns of any fork beside threads; that it works with ours is the point.
    warnings.simplefilter("ignore", DeprecationWarning)

    def fork(act):
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            try:
                print(act(), flush=True)
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0

    def hold(lock):
        held = threading.Event()
        def work():
            with lock:
                held.set()
                over.wait()
        threading.Thread(target=work, daemon=True).start()
        held.wait()

    over = threading.Event()
"""


def test_what_another_thread_held_at_a_fork_is_free_in_the_child() -> None:
    script = f"""{FORK}
    lock, condition = locks.new(), locks.condition(locks.new())
    hold(lock)
    hold(condition)

    def child():
        with lock, condition:
            condition.notify()
            return "free"

    fork(child)
    """
    assert run_child(script) == "free\n"


def test_what_the_forking_thread_holds_it_releases_in_the_child_too() -> None:
    script = f"""{FORK}
    lock = locks.new()

    def child():
        lock.release()
        return lock._is_owned()

    with lock:
        fork(child)
    """
    assert run_child(script) == "False\n"


def test_who_waited_at_a_fork_takes_no_notice_from_who_waits_in_the_child() -> None:
    script = f"""{FORK}
    condition = locks.condition(locks.new())
    waits = threading.Event()

    def wait():
        with condition:
            waits.set()
            condition.wait()

    threading.Thread(target=wait, daemon=True).start()
    waits.wait()
    with condition:
        pass

    def child():
        seen = []
        def wait():
            with condition:
                ready.set()
                seen.append(condition.wait(50))
        ready = threading.Event()
        waiter = threading.Thread(target=wait)
        waiter.start()
        ready.wait()
        with condition:
            condition.notify()
        waiter.join()
        return seen

    fork(child)
    """
    assert run_child(script) == "[True]\n"


def test_an_owner_begins_for_itself_in_each_child_and_not_in_the_parent() -> None:
    script = f"""{FORK}
    class Owner:
        begun = 0
        def begin(self):
            self.begun += 1

    one, gone = Owner(), Owner()
    locks.in_child(one, Owner.begin)
    locks.in_child(gone, Owner.begin)
    del gone
    fork(lambda: one.begun)
    fork(lambda: one.begun)
    print(one.begun)
    """
    assert run_child(script) == "1\n1\n0\n"


def test_owners_begin_in_a_child_in_their_order_whatever_one_of_them_raises() -> None:
    script = f"""{FORK}
    class Owner:
        def begin(self):
            begun.append(owners.index(self))
            if self is owners[1]:
                raise ValueError

    begun = []
    owners = [Owner() for _ in range(3)]
    for owner in owners:
        locks.in_child(owner, Owner.begin)
    sys.unraisablehook = lambda raised: begun.append(raised.exc_type.__name__)
    fork(lambda: begun)
    """
    assert run_child(script) == "[0, 1, 2, 'ValueError']\n"


def test_a_thread_is_refused_what_it_is_in_the_middle_of() -> None:
    lock, another = locks.new(), locks.new()
    locks.refuse_within(lock)
    with lock:
        locks.refuse_within(another)
        for given in ((lock,), (another, lock), ()):
            with pytest.raises(UsageError, match="in the middle of another call"):
                locks.refuse_within(*given)
    locks.refuse_within(lock)


def test_a_thread_that_holds_a_lock_waits_for_no_lock_above_it() -> None:
    lower, upper = locks.new(), locks.new()
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with upper:
            held.set()
            over.wait(60)

    with lower:
        locks.refuse_to_wait(upper)
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(60)
    locks.refuse_to_wait(upper)
    with lower, pytest.raises(UsageError):
        locks.refuse_to_wait(upper)
    over.set()
    holder.join()
    with upper, pytest.raises(UsageError):
        locks.refuse_to_wait(upper)


def test_many_threads_are_behind_a_door_at_once_and_each_of_them_once() -> None:
    door = locks.Door()
    seen: list[int] = []

    def enter() -> None:
        other = threading.Thread(target=lambda: seen.append(door.through(int, "7")))
        other.start()
        other.join()

    door.through(enter)
    assert seen == [7]
    with pytest.raises(UsageError, match="in the middle of another call"):
        door.through(door.through, int)
    assert door.through(int) == 0


def test_the_number_of_a_thread_behind_a_door_is_nobody_s_in_a_child() -> None:
    script = f"""{FORK}
    door = locks.Door()
    inside = threading.Event()
    def work():
        inside.set()
        over.wait()
    threading.Thread(target=door.through, args=(work,), daemon=True).start()
    inside.wait()
    fork(lambda: len(door._inside))
    door.through(fork, lambda: len(door._inside))
    """
    assert run_child(script) == "0\n1\n"
