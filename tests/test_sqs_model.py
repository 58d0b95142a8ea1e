"""Random sequences of SQS's actions, compared with a small model of SQS.

Time is a clock that only the sequence moves, by tens of seconds. What the model leaves open: which
of the visible messages of a standard queue, or which groups of a FIFO queue, a receive returns, and
whether one without a wait returns all of them.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from callers import Api
from examples import bounded
from hypothesis import example, given
from hypothesis import strategies as st

import shardq
from shardq.testing import ManualClock

ONCE_S = 300
VISIBILITY_S = 30
RECEIVES_MAX = 3
TRIES = 3
_STORED = 20
URL = "http://test/000000000000/"


@dataclass
class Kept:
    """A message, as the model knows it.

    Attributes:
        visible_s: When it can be received.
        handles: The handles of its receives, the present one last.
    """

    id: str
    body: str
    group: str
    visible_s: float
    receives: int = 0
    handles: list[str] = field(default_factory=list)


class Model:
    """A queue with a dead-letter queue, as SQS says that they are.

    A message that was received too often is spent: no receive returns it, and the next one that
    meets it lets it die. Whether one has met it, only the dead-letter queue tells.
    """

    def __init__(self, *, is_fifo: bool) -> None:
        self.is_fifo = is_fifo
        self.now_s = 0.0
        self.live: list[Kept] = []
        self.spent: list[Kept] = []
        """Received too often, and visible: the next receive that meets one lets it die."""
        self.dead: list[Kept] = []
        self.purged: list[Kept] = []
        self.handles: dict[str, Kept] = {}
        self.sent: dict[str, tuple[str, float]] = {}

    def first_of(self, once: str) -> str | None:
        """The id of the message that was sent under a deduplication id in the last five minutes."""
        found = self.sent.get(once)
        return found[0] if found is not None and self.now_s < found[1] + ONCE_S else None

    def spend(self) -> None:
        """Move visible messages that were received too often to `spent`."""
        for one in [*self.live]:
            if one.visible_s <= self.now_s and one.receives >= RECEIVES_MAX:
                self.live.remove(one)
                self.spent.append(one)

    def bury(self, dead: set[str]) -> None:
        """Take note of the messages that have died."""
        died = [one for one in self.spent if one.id in dead]
        self.spent = [one for one in self.spent if one.id not in dead]
        self.dead += died
        assert dead == {one.id for one in self.dead}

    def visible(self) -> list[Kept]:
        """The messages that a receive may return, in order."""
        found: list[Kept] = []
        closed: set[str] = set()
        for one in self.live:
            is_closed = self.is_fifo and one.group in closed
            if one.visible_s > self.now_s:
                closed.add(one.group)
            elif not is_closed:
                found.append(one)
        return found

    def in_flight(self, one: Kept) -> bool:
        return one in self.live and one.receives > 0 and one.visible_s > self.now_s


class Run:
    """A sequence of actions on a server and on the model."""

    def __init__(self, db: shardq.Connection, clock: ManualClock, *, is_fifo: bool) -> None:
        self.db = db
        self.clock = clock
        self.model = Model(is_fifo=is_fifo)
        self.end = ".fifo" if is_fifo else ""
        self.api = Api(db)
        self.count = 0

    async def ask(self, action: str, **given: Any) -> dict[str, Any]:
        """The answer to an action; if the action is refused, only the type of the error."""
        got = await self.api.sqs(action, **{"QueueUrl": f"{URL}mail{self.end}"} | given)
        found: dict[str, Any] = got.json
        return found if got.status == 200 else {"refused": found["__type"].partition("#")[2]}

    async def begin(self) -> None:
        attributes = {"FifoQueue": "true"} if self.end else {}
        await self.ask("CreateQueue", QueueName=f"dead{self.end}", Attributes=attributes)
        arn = f"arn:aws:sqs:us-east-1:000000000000:dead{self.end}"
        policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES_MAX})
        attributes |= {"RedrivePolicy": policy, "VisibilityTimeout": f"{VISIBILITY_S}"}
        made = await self.ask("CreateQueue", QueueName=f"mail{self.end}", Attributes=attributes)
        assert "QueueUrl" in made

    async def send(self, bodies: list[int], group: str, delay_s: int) -> None:
        """Send a batch; equal bodies are repeats in a FIFO queue."""
        model = self.model
        entries: list[dict[str, Any]] = []
        for number in bodies:
            body = f"{number}" if model.is_fifo else f"{number}-{self.count}"
            self.count += 1
            entry: dict[str, Any] = {"Id": f"{len(entries)}", "MessageBody": body}
            if model.is_fifo:
                entry |= {"MessageGroupId": group, "MessageDeduplicationId": body}
            else:
                entry["DelaySeconds"] = delay_s
            entries.append(entry)
        answer = await self.ask("SendMessageBatch", Entries=entries)
        assert answer["Failed"] == []
        for entry, sent in zip(entries, answer["Successful"], strict=True):
            once = entry.get("MessageDeduplicationId", "")
            first = model.first_of(once) if model.is_fifo else None
            if first is not None:
                assert sent["MessageId"] == first
                continue
            made = Kept(
                sent["MessageId"],
                entry["MessageBody"],
                group if model.is_fifo else "",
                model.now_s + (0 if model.is_fifo else delay_s),
            )
            assert made.id not in {one.id for one in model.handles.values()}
            model.live.append(made)
            model.sent[once] = made.id, model.now_s

    async def receive(self, most: int, visibility_s: int) -> None:
        """Receive; what a receive without a wait leaves, one of the next must bring."""
        for _ in range(TRIES):
            left = await self._receive(most, visibility_s)
            if not left:
                return
            most = left
            self.clock.advance(0.5)
        raise AssertionError(f"{left} messages are not received")

    async def _receive(self, most: int, visibility_s: int) -> int:
        model = self.model
        answer = await self.ask(
            "ReceiveMessage",
            MaxNumberOfMessages=most,
            VisibilityTimeout=visibility_s,
            AttributeNames=["All"],
        )
        model.spend()
        found = answer.get("Messages", [])
        may = {one.id: one for one in model.visible()}
        wanted = min(most, len(may))
        assert len(found) <= wanted, (found, may)
        got: list[Kept] = []
        for message in found:
            one = may.pop(message["MessageId"])
            one.receives += 1
            one.visible_s = model.now_s + visibility_s
            one.handles.append(message["ReceiptHandle"])
            assert message["ReceiptHandle"] not in model.handles
            model.handles[message["ReceiptHandle"]] = one
            assert message["Body"] == one.body
            assert message["Attributes"]["ApproximateReceiveCount"] == f"{one.receives}"
            got.append(one)
        if model.is_fifo:
            # The received messages of a group are its first ones, in order.
            for group in {one.group for one in got}:
                mine = [one for one in got if one.group == group]
                all_of = [one for one in model.live if one.group == group]
                assert mine == all_of[: len(mine)]
        if model.spent:
            await self._learn()
        return wanted - len(found)

    async def _learn(self) -> None:
        """Learn which of the spent messages have died: those that the last receive has met."""
        dead = self.db.queue(f"dead{self.end}")
        for _ in range(_STORED):
            # The server stores what it has decided some 10 ms later.
            self.clock.advance(0.01)
            await asyncio.to_thread(dead.depth)
        self.model.bury({one.id for one in dead.peek(1_000)})

    async def delete(self, handle: str) -> None:
        model = self.model
        one = model.handles[handle]
        answer = await self.ask("DeleteMessage", ReceiptHandle=handle)
        if one in model.spent:
            # The message exists until a receive meets it.
            if "refused" not in answer:
                model.spent.remove(one)
            return
        if model.is_fifo and one in model.live:
            is_present = handle == one.handles[-1] and model.in_flight(one)
            assert ("refused" in answer) is not is_present, answer
            if not is_present:
                return
        else:
            assert answer == {}
        if one in model.live:
            model.live.remove(one)

    async def change(self, handle: str, visibility_s: int) -> None:
        model = self.model
        one = model.handles[handle]
        answer = await self.ask(
            "ChangeMessageVisibility", ReceiptHandle=handle, VisibilityTimeout=visibility_s
        )
        if one in model.purged:
            # docs/sqs.md: taken, to no effect.
            return
        is_good = model.in_flight(one) and (not model.is_fifo or handle == one.handles[-1])
        assert ("refused" in answer) is not is_good, (answer, one)
        if is_good:
            one.visible_s = model.now_s + visibility_s

    async def purge(self) -> None:
        self.clock.advance(61)
        self.model.now_s += 61
        await self.ask("PurgeQueue")
        self.model.purged += self.model.live + self.model.spent
        self.model.live.clear()
        self.model.spent.clear()

    def pass_by(self, seconds: int) -> None:
        self.clock.advance(seconds)
        self.model.now_s += seconds

    async def check(self) -> None:
        """Compare how many messages there are, of those that have not died."""
        answer = await self.ask("GetQueueAttributes", AttributeNames=["All"])
        counts = Counter(
            {
                name.removeprefix("ApproximateNumberOfMessages"): int(value)
                for name, value in answer["Attributes"].items()
                if name.startswith("ApproximateNumberOfMessages")
            }
        )
        assert counts.total() == len(self.model.live + self.model.spent), (counts, self.model)

    async def finish(self) -> None:
        """Compare what is dead."""
        self.pass_by(50_000)
        # A message dies when a receive meets it.
        for _ in range(1 + len(self.model.live)):
            await self.receive(10, 40_000)
        assert self.model.visible() == []
        assert self.model.spent == []
        found: list[str] = []
        for _ in range(5 * TRIES):
            self.clock.advance(0.5)
            answer = await self.ask(
                "ReceiveMessage",
                QueueUrl=f"{URL}dead{self.end}",
                MaxNumberOfMessages=10,
                VisibilityTimeout=40_000,
            )
            found += [one["MessageId"] for one in answer.get("Messages", [])]
        assert sorted(found) == sorted(one.id for one in self.model.dead)
        await self.api.app.site.close()


NAMES = (
    ["send"] * 4 + ["receive"] * 6 + ["delete"] * 3 + ["change"] * 4 + ["pass_by"] * 4
    + ["purge", "check"]
)  # fmt: skip


class Step(NamedTuple):
    """An action, and all that any may need."""

    name: str
    bodies: list[int]
    group: str
    delay_s: int
    most: int
    visibility_s: int
    handle: int
    seconds: int


STEPS = st.builds(
    Step,
    st.sampled_from(NAMES),
    st.lists(st.integers(0, 6), min_size=1, max_size=4),
    st.sampled_from("gh"),
    st.sampled_from([0, 0, 20]),
    st.integers(1, 10),
    st.sampled_from([0, 10, 30, 100]),
    st.integers(0, 7),
    st.sampled_from([10, 10, 20, 100, 310]),
)


async def take(run: Run, step: Step) -> None:
    """Take a step."""
    handles = [*run.model.handles][-8:]
    handle = handles[step.handle % len(handles)] if handles else ""
    if step.name == "send":
        await run.send(step.bodies, step.group, step.delay_s)
    elif step.name == "receive":
        await run.receive(step.most, step.visibility_s)
    elif step.name == "delete" and handle:
        await run.delete(handle)
    elif step.name == "change" and handle:
        await run.change(handle, step.visibility_s)
    elif step.name == "pass_by":
        run.pass_by(step.seconds)
    elif step.name == "purge":
        await run.purge()
    elif step.name == "check":
        await run.check()


async def carry_out(steps: list[Step], *, is_fifo: bool) -> None:
    clock = ManualClock()
    with shardq.connect("sqlite://", clock=clock) as db:
        run = Run(db, clock, is_fifo=is_fifo)
        await run.begin()
        for step in steps:
            # Each action happens at a moment of its own.
            clock.advance(0.002)
            await take(run, step)
        await run.finish()


DEAD_AND_DELETED = [
    Step("send", [5], "g", 0, 2, 30, 6, 20),
    Step("receive", [5], "g", 20, 9, 0, 1, 100),
    Step("receive", [2], "h", 0, 5, 10, 4, 310),
    Step("pass_by", [4], "h", 0, 8, 0, 4, 10),
    Step("receive", [1], "g", 0, 10, 0, 0, 20),
    Step("receive", [3], "g", 20, 1, 0, 3, 100),
    Step("delete", [6], "g", 20, 6, 30, 1, 10),
]
"""It died at the last receive: a receipt of before deletes it no more."""


@bounded(40)
@example(steps=DEAD_AND_DELETED, is_fifo=False)
@given(steps=st.lists(STEPS, min_size=12, max_size=30), is_fifo=st.booleans())
def test_sequences_of_actions_come_to_what_sqs_says(steps: list[Step], is_fifo: bool) -> None:
    asyncio.run(carry_out(steps, is_fifo=is_fifo))
