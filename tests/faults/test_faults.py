"""Each fault by itself, and several in a row as a seed says."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
from cassandra.cluster import Cluster
from proofs.producer import put

import shardq
from faults.nodes import FILLED
from faults.proxy import Fate, Proxy
from shardq.clock import SystemClock
from shardq.errors import StoreTimeout, StoreUnavailable
from shardq.lease import TTL_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from faults.nodes import Nodes
    from faults.play import Play

LEASE_S = TTL_MS / 1_000
BACK_S = 2 * LEASE_S + 2
"""Two leases and a poll: by then everything that was held up has been delivered."""
SWEEP_S = 30 + 5
"""What a frozen producer wrote behind all cursors is found by the sweep of the last minute."""


def test_node_killed(play: Play, nodes: Nodes) -> None:
    play.begin()
    with play.trouble("ack to a node that died"):
        nodes.kill(2)
        play.go_on(play.size.trouble_s / 2)
    nodes.start()
    assert play.balance().resumed_s < BACK_S


def test_two_nodes_down(play: Play, nodes: Nodes) -> None:
    play.begin()
    with shardq.connect(nodes.url) as db, play.trouble("no quorum for the ack"):
        queue = db.queue("probe")
        nodes.kill(2)
        nodes.kill(3)
        refusal = refused_put(queue)
        play.go_on(play.size.trouble_s / 2)
        nodes.start()
        # By itself: nothing of ours was started again.
        put(queue, ["after"])
    assert nodes.url.partition("//")[2].partition(",")[0] in refusal
    assert play.balance().resumed_s < BACK_S


def refused_put(queue: shardq.Queue) -> str:
    """What a put is told once the nodes know that too few of them are there."""
    clock = SystemClock()
    for _ in range(60):
        try:
            queue.put("refused")
        except StoreTimeout:
            # Those that are down are not known to be: maybe applied.
            clock.sleep(0.1)
        except StoreUnavailable as error:
            # Before that, it says of reads that they got no answer.
            if "is not available" in str(error):
                return str(error)
            clock.sleep(0.1)
    raise AssertionError("puts are not refused with two nodes of three down")


def test_node_frozen(play: Play, nodes: Nodes) -> None:
    play.begin()
    with play.trouble("ack to a node that stood still"), nodes.frozen(2):
        play.go_on()
    assert play.balance().resumed_s < BACK_S


def test_consumer_killed(play: Play) -> None:
    play.begin()
    play.kill(play.stage.consumers[0])
    assert play.balance().resumed_s < BACK_S


def test_consumer_frozen(play: Play) -> None:
    play.begin()
    with play.frozen(play.stage.consumers[0]):
        play.go_on(max(play.size.trouble_s, 1.5 * LEASE_S))
    assert play.balance().resumed_s < BACK_S


def test_producers_killed_and_frozen(play: Play) -> None:
    play.begin()
    killed, frozen = play.stage.producers
    play.kill(killed)
    with play.frozen(frozen):
        play.go_on(max(play.size.trouble_s, 1.5 * LEASE_S))
    assert play.balance().resumed_s < SWEEP_S


def test_answers_lost_and_late(play: Play, nodes: Nodes, seed: int) -> None:
    hosts, _, rest = nodes.url.removeprefix("cassandra://").partition(":")
    port, _, keyspace = rest.partition("/")
    fates = {"lwt": Fate(0.04, 0.04, 2.0), "write": Fate(0.02, 0.02, 2.0)}
    with Proxy(hosts.split(","), int(port), fates, seed) as proxy:
        shown = ",".join(proxy.addresses)
        # Long waits for what never comes would leave few answers to be lost.
        play.stage.url = f"cassandra://{shown}:{port}/{keyspace}?timeout=2s"
        with play.trouble("unknown outcome"):
            play.begin()
            play.go_on()
            play.drain()
        play.line.note = ", ".join(f"{n} {what}" for what, n in sorted(proxy.counts.items()))
    play.balance()
    assert min(proxy.counts[f"{kind} {fate}"] for kind in fates for fate in ("lost", "late"))


@pytest.mark.root
def test_node_cut_off(play: Play, nodes: Nodes) -> None:
    play.begin()
    with play.trouble("ack through a node cut off"), nodes.cut_off(2):
        play.go_on()
    nodes.settle()
    assert play.balance().resumed_s < BACK_S


@pytest.mark.root
def test_all_nodes_cut_off(play: Play, nodes: Nodes) -> None:
    play.begin()
    with play.trouble("no quorum for the ack"), nodes.cut_off(1, 2, 3):
        play.go_on()
    nodes.settle()
    assert play.balance().resumed_s < BACK_S


@pytest.mark.root
def test_clients_cut_off(play: Play, nodes: Nodes) -> None:
    play.begin()
    with play.trouble("ack that found no node"):
        with nodes.unreachable(1):
            play.go_on(play.size.trouble_s / 2)
        with nodes.unreachable(1, 2, 3):
            play.go_on(1.2 * LEASE_S)
    assert play.balance().resumed_s < BACK_S


def test_write_timeout_of_3_ms(play: Play, nodes: Nodes) -> None:
    play.begin()
    before = nodes.timeouts()
    with play.trouble("unknown outcome"), nodes.write_timeout(3):
        play.go_on()
    timeouts = nodes.timeouts() - before
    play.line.note = f"{timeouts} writes and LWTs timed out"
    assert timeouts
    assert play.balance().resumed_s < BACK_S


def test_clocks_off_by_90_s(play: Play) -> None:
    play.begin(shifts_s=(90, -90, 0))
    assert not play.balance().causes


def test_tombstone_limit_of_500(play: Play, nodes: Nodes) -> None:
    with nodes.tombstone_limit(500):
        before = nodes.logged("tombstones during query")
        # A lane for each consumer, and in each more than that within seconds.
        play.begin(lanes=3, group_lanes=3, rate=2 * play.size.rate)
        play.wait_for_all()
        # Until the sweep of the last minute has come by.
        play.go_on(SWEEP_S)
        tripped = nodes.logged("tombstones during query") - before
    logs = [one.log.read_text(errors="replace") for one in play.stage.consumers]
    play.line.note = f"{tripped} reads tripped it"
    assert not play.balance().causes
    assert tripped, "no sweep met so many"
    assert not any("trying again" in text for text in logs), "a step failed for it"


@pytest.mark.root
def test_disk_full(play: Play, nodes: Nodes) -> None:
    play.begin()
    with play.trouble("ack to a node without room"), nodes.disk_full():
        write_much(nodes)
        play.go_on()
        # Its commit log is mapped into memory: with no page left for that, its Java ends.
        assert not nodes.is_up(FILLED), "the node found room"
    nodes.kill(FILLED)
    nodes.start()
    assert play.balance().resumed_s < BACK_S


def write_much(nodes: Nodes) -> None:
    """More than the commit log's segment that is being filled has room for, and the next one."""
    with shardq.connect(nodes.url) as db:
        put(db.queue("much"), ({"body": bytes(400_000), "delay": "1d"} for _ in range(60)))


def test_zombies_forced(play: Play, nodes: Nodes) -> None:
    """A node misses deletes, gets no hints, and comes back when tombstones are past gc_grace."""
    with grace_of(nodes, 10), nodes.without_hints():
        # Sealed soon: should the node be back late, the seal's sweep is the one that finds them.
        # And without a ledger, by which they would be known for what they are and dropped.
        play.begin(minute="20s", offset="60s", history="off")
        with play.trouble("zombie: its delete was missed"):
            nodes.kill(3)
            play.wait_for_all()
            play.go_on(12)
            nodes.start()
        handed_out = len(play.stage.hand_outs())
        play.stage.wait(lambda: len(play.stage.hand_outs()) > handed_out, quiet_s=2 * SWEEP_S)
        line = play.balance(left=True)
    line.note = f"{line.left} more for the sweeps 4 and more minutes after the seal"
    assert line.causes, "no zombie came"


class grace_of:  # noqa: N801 - reads as the sentence it stands in
    """While this lasts tombstones of messages are kept for so many seconds."""

    def __init__(self, nodes: Nodes, seconds: int) -> None:
        hosts, _, rest = nodes.url.removeprefix("cassandra://").partition(":")
        port, _, self._keyspace = rest.partition("/")
        self._hosts, self._port, self._seconds = hosts.split(","), int(port), seconds

    def __enter__(self) -> None:
        self._set(self._seconds)

    def __exit__(self, *_: object) -> None:
        self._set(10_800)

    def _set(self, seconds: int) -> None:
        with Cluster(self._hosts, port=self._port) as cluster:
            session = cluster.connect()
            table = f"{self._keyspace}.messages"
            session.execute(f"ALTER TABLE {table} WITH gc_grace_seconds = {seconds}")


def test_mixed(play: Play, nodes: Nodes, seed: int) -> None:
    chance = random.Random(seed)
    play.begin()
    done = []
    for _ in range(3 if play.size.rate < 500 else 8):
        act = chance.choice(MIXED)
        done.append(act.__name__.replace("_", " "))
        act(play, nodes, chance)
        play.go_on(1)
    play.line.note = f"seed {seed}: {', '.join(done)}"
    assert play.balance().resumed_s < BACK_S


def a_node_dies(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("ack to a node that died"):
        nodes.kill(chance.randint(1, 3))
        play.go_on(chance.uniform(0, 4))
        nodes.start()


def a_node_stands_still(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("ack to a node that stood still"), nodes.frozen(chance.randint(1, 3)):
        play.go_on(chance.uniform(1, 12))


def a_consumer_dies(play: Play, nodes: Nodes, chance: random.Random) -> None:
    living = [one for one in play.stage.consumers if one.process.poll() is None]
    play.kill(chance.choice(living))
    play.consume()


def a_consumer_stands_still(play: Play, nodes: Nodes, chance: random.Random) -> None:
    living = [one for one in play.stage.consumers if one.process.poll() is None]
    with play.frozen(chance.choice(living)):
        play.go_on(chance.uniform(1, 1.5 * LEASE_S))


def writes_time_out(play: Play, nodes: Nodes, chance: random.Random) -> None:
    with play.trouble("unknown outcome"), nodes.write_timeout(chance.randint(2, 20)):
        play.go_on(chance.uniform(1, 6))


MIXED: list[Callable[[Play, Nodes, random.Random], None]] = [
    a_node_dies,
    a_node_stands_still,
    a_consumer_dies,
    a_consumer_stands_still,
    writes_time_out,
]
