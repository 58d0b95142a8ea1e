"""The faults: each by itself, and a mix of several that a seed chooses."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from proofs.producer import put
from proofs.repeats import Kind

import shardq
from faults import network, waits
from faults.nodes import FILLED, Nodes
from faults.play import HELD_UP_MAX, Play
from faults.proxy import Fate, Proxy
from faults.refusals import Refusals, refusals
from shardq.clock import SystemClock
from shardq.engine.leases.lease import TTL_MS
from shardq.errors import StoreTimeout, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from proofs.stage import Process

Act: TypeAlias = Callable[[Play, Nodes, int], None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault that can be played.

    Attributes:
        act: Plays the fault.
        needs_root: True if the fault needs root.
        is_aside: True if the fault leaves the nodes alone, so that others can be played beside it.
        in_gate: True if the fault is played before each change lands.
    """

    act: Act
    needs_root: bool = False
    is_aside: bool = False
    in_gate: bool = False

    @property
    def name(self) -> str:
        """The fault's name, in the table and on the command line."""
        return self.act.__name__


FAULTS: list[Fault] = []


def fault(
    *, needs_root: bool = False, is_aside: bool = False, in_gate: bool = False
) -> Callable[[Act], Act]:
    """Mark a function as one that plays a fault."""

    def add(act: Act) -> Act:
        FAULTS.append(Fault(act, needs_root, is_aside, in_gate))
        return act

    return add


LEASE_S = TTL_MS / 1_000
GRACE_S = 10
SEAL_S = 20 + 60 + 10 + 4 * 20
"""The minute of the zombies' queue, its offset, the sweep at the seal, and the one 4 minutes later,
which finds them if the node was not back at the seal."""
SWEEP_S = 30 + 5
"""How soon the sweep of the last minute is made."""
SWEEP_AGAIN_S = 3
CALM_S = 5
CALM_S_MAX = 60
"""How long to wait until lanes stay with their consumers, whose polls then read only new rows."""
LONG_SWEEP = "sweep 60 s"
LIMITED_LANES = 3
"""Few lanes, so that each gets many messages, with two tombstones each."""
CALLED: dict[str, Any] = {"callers": 1, "rate": 50, "lanes": 6, "group_lanes": 6}
"""Two lanes for each consumer and the caller, and no more messages than the caller can settle."""


@fault(in_gate=True)
def node_killed(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with play.trouble("ack to a node that died", endured=True):
        nodes.kill(2)
        assert not nodes.is_up(2)
        play.go_on(play.size.trouble_s / 2)
        nodes.start()
        assert nodes.is_up(2)
    play.assert_went_on()


@fault()
def two_nodes_down(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with shardq.connect(nodes.url) as db, play.trouble("no quorum for the ack"):
        queue = db.queue("probe")
        nodes.kill(2)
        nodes.kill(3)
        refusal = refused_put(queue)
        play.go_on(play.size.trouble_s / 2)
        nodes.start()
        # The queue recovers by itself: no process was restarted.
        put(queue, ["after"])
    assert nodes.url.partition("//")[2].partition(",")[0] in refusal
    play.assert_is_back()


def refused_put(queue: shardq.Queue) -> str:
    """The error of a put once the nodes know that too few of them are up."""
    clock = SystemClock()
    for _ in range(60):
        try:
            queue.put("refused")
        except StoreTimeout:
            # The nodes do not know yet that others are down: the write may be applied.
            clock.sleep(0.1)
        except StoreUnavailable as error:
            # Until the nodes know, the store reports "gave no answer" for reads: try again.
            if "is not available" in str(error):
                return str(error)
            clock.sleep(0.1)
    raise AssertionError("puts are not refused with two nodes of three down")


@fault()
def node_frozen(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with play.trouble("ack to a node that stood still", endured=True), nodes.frozen(2):
        play.go_on()
    play.assert_went_on()


@fault(is_aside=True)
def consumer_killed(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    play.kill(play.stage.consumers[0])
    play.go_on(LEASE_S)
    play.assert_is_back()


@fault(is_aside=True, in_gate=True)
def consumer_frozen(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with play.frozen(play.stage.consumers[0]):
        play.go_on(max(play.size.trouble_s, 1.5 * LEASE_S))
    play.assert_is_back()


@fault(is_aside=True)
def producers_killed_and_frozen(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    killed, frozen = play.stage.producers
    play.kill(killed)
    play.produce()
    with play.frozen(frozen):
        play.go_on(max(play.size.trouble_s, 1.5 * LEASE_S))
    play.assert_is_back()


FATES = {"lwt": Fate(8, 2.0), "move": Fate(8, 2.0), "write": Fate(50, 2.0)}


@fault(is_aside=True, in_gate=True)
def answers_lost_and_late(play: Play, nodes: Nodes, seed: int) -> None:
    with through_proxy(play, nodes, seed) as proxy:
        proxy.fates = FATES
        with play.trouble("unknown outcome"):
            play.begin(**CALLED)
            play.go_on()
            play.wait_for(lambda: all(fates_met(proxy)), play.size.quiet_s)
            # With lost answers in every batch, a caller would need minutes for the rest.
            proxy.fates = {}
        play.drain()
    play.line.note = ", ".join(f"{n} {what}" for what, n in sorted(proxy.counts.items()))
    play.balance()
    assert all(fates_met(proxy))


def fates_met(proxy: Proxy) -> list[int]:
    """For each kind of answer and each fate, how many answers met it."""
    return [proxy.counts[f"{kind} {fate}"] for kind in FATES for fate in ("lost", "late")]


@contextmanager
def through_proxy(play: Play, nodes: Nodes, seed: int) -> Iterator[Proxy]:
    """While this lasts, the play's processes reach the nodes through a proxy."""
    hosts, _, rest = nodes.url.removeprefix("cassandra://").partition(":")
    port, _, keyspace = rest.partition("/")
    with Proxy(hosts.split(","), int(port), seed) as proxy:
        shown = ",".join(proxy.addresses)
        # A short timeout: long waits for lost answers would leave few calls to lose answers of.
        play.stage.url = f"cassandra://{shown}:{port}/{keyspace}?timeout=2s"
        play.proxy = proxy
        yield proxy


@fault(needs_root=True)
def node_cut_off(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with play.trouble("ack through a node cut off", endured=True), nodes.cut_off(2) as dropped:
        play.go_on()
    play.line.note = f"{dropped():,} packets dropped"
    assert dropped()
    nodes.settle()
    play.assert_went_on()


@fault(needs_root=True)
def all_nodes_cut_off(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with play.trouble("no quorum for the ack"), nodes.cut_off(1, 2, 3) as dropped:
        play.go_on()
    play.line.note = f"{dropped():,} packets dropped"
    assert dropped()
    nodes.settle()
    play.assert_is_back()


@fault(needs_root=True)
def clients_cut_off(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with play.trouble("ack that found no node"):
        with nodes.unreachable(1) as dropped_by_one:
            play.go_on(play.size.trouble_s / 2)
        with nodes.unreachable(1, 2, 3) as dropped:
            play.go_on(1.2 * LEASE_S)
    play.line.note = f"{dropped_by_one():,} and {dropped():,} packets dropped"
    assert dropped_by_one()
    assert dropped()
    play.assert_is_back()


@fault()
def write_timeout_of_2_ms(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    before = nodes.timeouts()
    with play.trouble("unknown outcome"), nodes.write_timeout(2):
        play.go_on()
    timeouts = nodes.timeouts() - before
    play.line.note = f"{timeouts} writes and LWTs timed out"
    assert timeouts
    play.assert_is_back()


@fault(is_aside=True)
def clocks_off_by_90_s(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin(shifts_s=(90, -90, 0), **CALLED)
    play.go_on()
    line = play.balance()
    assert not line.causes
    # If clocks were not corrected, two of the three consumers would be 90 s late or early.
    assert waits.held_up(line.waits) < HELD_UP_MAX


@fault()
def tombstone_limit_of_500(play: Play, nodes: Nodes, seed: int) -> None:
    # One lane for each consumer, each with more tombstones than the limit within the minute of a
    # sweep. With few threads a consumer would give its group lanes away whenever all are busy.
    play.begin(lanes=LIMITED_LANES, group_lanes=LIMITED_LANES, rate=100, threads=16)
    with nodes.tombstone_limit(500):
        before = nodes.logged("tombstones during query")
        play.go_on()
        play.wait_for(lambda: refused_by(play).calm_s > CALM_S, CALM_S_MAX)
        calm_s = refused_by(play).calm_s
        play.wait_for_all()
        # Wait for the sweep of the last minute, and then long enough for its repeat.
        play.wait_for(lambda: LONG_SWEEP in refused_by(play).counts, SWEEP_S)
        play.go_on(SWEEP_AGAIN_S)
        tripped = nodes.logged("tombstones during query") - before
    refused = refused_by(play)
    told = ", ".join(f"{count} {purpose}" for purpose, count in sorted(refused.counts.items()))
    play.line.note = f"{tripped} reads tripped it: {told}"
    assert not play.balance().causes
    assert LONG_SWEEP in refused.counts, "no sweep of the last minute met so many"
    assert calm_s > CALM_S, "lanes changed hands all the while"
    assert not refused.polls, f"a poll went through what was settled: {refused.polls[:3]}"
    assert not refused.failed, f"a step failed for it: {refused.failed[:3]}"


def refused_by(play: Play) -> Refusals:
    """The reads that the nodes refused to the play's consumers."""
    return refusals(logs_of(play))


@fault(needs_root=True)
def disk_full(play: Play, nodes: Nodes, seed: int) -> None:
    play.begin()
    with play.trouble("ack to a node without room"):
        with nodes.disk_full():
            write_much(nodes)
            play.go_on()
            # Its commit log is mapped into memory: without a page for it the Java ends.
            assert not nodes.is_up(FILLED), "the node found room"
        nodes.kill(FILLED)
        nodes.start()
    play.assert_is_back()


def write_much(nodes: Nodes) -> None:
    """Put more bytes than fit into the commit log's present segment and the next one."""
    with shardq.connect(nodes.url) as db:
        put(db.queue("much"), ({"body": bytes(400_000), "delay": "1d"} for _ in range(60)))


@fault()
def zombies_forced(play: Play, nodes: Nodes, seed: int) -> None:
    """A node misses deletes, gets no hints, and comes back when tombstones are past gc_grace."""
    # Short minutes are sealed soon, so that the seal's sweep finds the zombies of the node.
    # Many lanes: a zombie is read only in partitions that are read through that node.
    settings: dict[str, Any] = {"minute": "20s", "offset": "60s", "lanes": 16, "group_lanes": 16}
    with play.beside("zombies and a ledger") as known:
        # A queue without a ledger delivers zombies: it cannot tell them from messages.
        play.begin(**settings, history="off", plain=True)
        # A queue with a ledger recognizes them.
        known.begin(**settings, messages=play.size.messages // 4, consumers=1, producers=1)
        with grace_of(nodes, GRACE_S), nodes.without_hints(3):
            with haunted(play), haunted(known):
                nodes.kill(3)
                play.go_on(play.size.trouble_s / 2)
                play.wait_for_all()
                known.wait_for_all()
                play.go_on(GRACE_S + 2)
                handed_out = len(play.stage.hand_outs())
                nodes.start()
            play.stage.wait(lambda: len(play.stage.hand_outs()) > handed_out, quiet_s=SEAL_S)
            play.wait_for(lambda: bool(dropped_by(known)), SEAL_S)
            line = play.balance(left=True)
            known.drain(checked=True)
        dropped = dropped_by(known)
        known.line.note = f"{dropped} dropped when they came, {known.line.dropped} by check --all"
        assert not known.balance().causes, "a zombie was delivered, though the ledger knew it"
    line.note = f"{line.left} more for the sweeps 4 and more minutes after the seal"
    assert line.causes, "no zombie came"
    assert dropped, "no consumer met a zombie of the ledger's"


def dropped_by(play: Play) -> int:
    """How many rows of ended messages a play's consumers dropped, by their logs."""
    told = "\n".join(logs_of(play))
    return sum(map(int, re.findall(r": (\d+) rows dropped, whose", told)))


@contextmanager
def haunted(play: Play) -> Iterator[None]:
    """While this lasts, a node misses deletes; rows that it has may be delivered again."""
    with play.trouble("zombies, whose deletes were missed", kind=Kind.ZOMBIES, grace_s=GRACE_S):
        yield


def logs_of(play: Play) -> list[str]:
    """The log of each consumer of a play."""
    return [one.log.read_text(errors="replace") for one in play.stage.consumers]


@contextmanager
def grace_of(nodes: Nodes, seconds: int) -> Iterator[None]:
    """While this lasts, tombstones of messages are kept for `seconds`."""
    nodes.alter_messages(gc_grace_seconds=seconds)
    try:
        yield
    finally:
        nodes.alter_messages(gc_grace_seconds=10_800)


@fault()
def mixed(play: Play, nodes: Nodes, seed: int) -> None:
    chance = random.Random(seed)
    kinds = [one for one in MIXED if one not in MIXED_BY_ROOT or network.lacking() is None]
    chosen = chance.sample(kinds, play.size.acts)
    with ExitStack() as stack:
        if answers_get_lost in chosen:
            stack.enter_context(through_proxy(play, nodes, seed))
        # A queue without a ledger, like most, cannot recognize rows that come back.
        history, shifts_s = chance.choice(("1d", "off")), chance.choice(((0,), (90, -90, 0)))
        play.begin(history=history, shifts_s=shifts_s)
        for act in chosen:
            act(play, nodes, chance)
            play.go_on(1)
        named = ", ".join(act.__name__.replace("_", " ") for act in chosen)
        clocks = "clocks off by 90 s, " if any(shifts_s) else ""
        play.line.note = f"seed {seed}: {clocks}{named}"
        play.drain()
    play.assert_is_back()


def a_node_dies(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("ack to a node that died"):
        nodes.kill(chance.randint(1, 3))
        play.go_on(chance.uniform(0, 4))
        nodes.start()


def two_nodes_die(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("no quorum for the ack"):
        for number in chance.sample(range(1, 4), 2):
            nodes.kill(number)
        play.go_on(chance.uniform(0, 4))
        nodes.start()


def a_node_stands_still(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("ack to a node that stood still"), nodes.frozen(chance.randint(1, 3)):
        play.go_on(chance.uniform(1, 12))


def nodes_are_cut_off(play: Play, nodes: Nodes, chance: random.Random) -> None:
    numbers = chance.sample(range(1, 4), chance.randint(1, 3))
    with play.trouble("ack through a node cut off"), nodes.cut_off(*numbers):
        play.go_on(chance.uniform(1, 12))
    nodes.settle()


def clients_lose_nodes(play: Play, nodes: Nodes, chance: random.Random) -> None:
    numbers = chance.sample(range(1, 4), chance.randint(1, 3))
    with play.trouble("ack that found no node"), nodes.unreachable(*numbers):
        play.go_on(chance.uniform(1, 12))


def a_consumer_dies(play: Play, nodes: Nodes, chance: random.Random) -> None:
    play.kill(chance.choice(living(play.stage.consumers, "consumer")))
    play.consume()


def a_consumer_stands_still(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.frozen(chance.choice(living(play.stage.consumers, "consumer"))):
        play.go_on(chance.uniform(1, 1.5 * LEASE_S))


def a_caller_dies(play: Play, nodes: Nodes, chance: random.Random) -> None:
    one = play.call()
    play.go_on(chance.uniform(1, 6))
    play.kill(one)


def a_producer_dies(play: Play, nodes: Nodes, chance: random.Random) -> None:
    play.kill(chance.choice(living(play.stage.producers, "producer")))
    play.produce()


def a_producer_stands_still(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.frozen(chance.choice(living(play.stage.producers, "producer"))):
        play.go_on(chance.uniform(1, 1.5 * LEASE_S))


def living(processes: Iterable[Process], kind: str) -> list[Process]:
    """The processes of a kind that have not ended."""
    return [one for one in processes if not one.process.has_ended() and one.name.startswith(kind)]


def writes_time_out(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("unknown outcome"), nodes.write_timeout(chance.randint(2, 20)):
        play.go_on(chance.uniform(1, 6))


def answers_get_lost(play: Play, nodes: Nodes, chance: random.Random) -> None:
    assert play.proxy is not None
    with play.trouble("unknown outcome"):
        play.proxy.fates = FATES
        play.go_on(chance.uniform(1, 12))
        play.proxy.fates = {}


def tombstones_are_limited(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with nodes.tombstone_limit(500):
        play.go_on(chance.uniform(1, 12))


def a_disk_fills(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("ack to a node without room"):
        with nodes.disk_full():
            write_much(nodes)
            play.go_on(chance.uniform(1, 6))
        nodes.kill(FILLED)
        nodes.start()


MIXED: list[Callable[[Play, Nodes, random.Random], None]] = [
    a_node_dies,
    two_nodes_die,
    a_node_stands_still,
    nodes_are_cut_off,
    clients_lose_nodes,
    a_consumer_dies,
    a_consumer_stands_still,
    a_caller_dies,
    a_producer_dies,
    a_producer_stands_still,
    writes_time_out,
    answers_get_lost,
    tombstones_are_limited,
    a_disk_fills,
]
MIXED_BY_ROOT = {nodes_are_cut_off, clients_lose_nodes, a_disk_fills}
