"""Three SQS servers share a store; every 10 s one is killed or stopped, and started again.

```
 senders ──► any server that answers ──► orders, a standard queue ──► receivers, who delete
   a call without an answer is repeated   steps, FIFO, 50 groups
```
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any

from measures.asked import Connection, Key
from measures.server import key_of

import shardq
from proofs.promise import Promise
from proofs.serving import Server, free_port
from shardq.clock import machine_us
from shardq.errors import ShardqError
from shardq.model.settings import FOLLOWED_MS

if TYPE_CHECKING:
    from proofs.stage import Stage

_MESSAGES = (20_000, 200_000)
_SERVERS = 3
_SENDERS, _RECEIVERS, _GROUP_RECEIVERS = 6, 6, 6
_GROUPS = 50
_GROUPED_EACH = 10
"""One of this many messages goes to a FIFO queue."""
_DELAYED_EACH = 20
_DELAY_S_MAX = 20
_VISIBILITY_S = 10
_DISTURBED_S = 10.0
_QUIET_S = 90.0
_AGAIN_S = 0.05
_CALL_S = 40.0


@dataclass(slots=True)
class _Got:
    """A message that a receive has returned.

    Attributes:
        asked_us: When the receive was asked for, by the machine's clock.
        at_us: When its answer came.
        ending_us: When the delete was sent; None before.
        ended_us: When the delete was confirmed; None if it was not.
    """

    asked_us: int
    at_us: int
    ending_us: int | None = None
    ended_us: int | None = None


@dataclass(slots=True)
class _Books:
    """The record of all that clients have sent and received.

    Attributes:
        sent: Body -> the time before which it must not be received.
        unsure: Body -> how many sends of it had no answer.
        got: Body -> its deliveries.
        calls: Calls by their action and outcome.
        early: Bodies that were received before their time.
        together: Pairs of bodies of one group, unsettled at the same time.
    """

    sent: dict[str, int] = field(default_factory=dict)
    unsure: Counter[str] = field(default_factory=Counter)
    got: defaultdict[str, list[_Got]] = field(default_factory=lambda: defaultdict(list))
    calls: Counter[str] = field(default_factory=Counter)
    early: list[str] = field(default_factory=list)
    together: list[tuple[str, str]] = field(default_factory=list)
    disordered: list[tuple[str, str]] = field(default_factory=list)
    held: defaultdict[str, dict[str, _Got]] = field(default_factory=lambda: defaultdict(dict))
    latest: defaultdict[str, int] = field(default_factory=lambda: defaultdict(lambda: -1))
    news_us: int = 0

    def receive(self, body: str, asked_us: int) -> _Got:
        """Note that a receive has returned a message."""
        now_us = machine_us()
        one = _Got(asked_us, now_us)
        self.got[body].append(one)
        self.news_us = now_us
        if now_us < self.sent.get(body, 0):
            self.early.append(body)
        return one

    def receive_step(self, body: str, asked_us: int) -> _Got:
        """Record that a receive has returned a message of a group."""
        group, number = body.split("/")
        now_us = machine_us()
        for other, held in self.held[group].items():
            is_free = (
                held.ending_us is not None or now_us > held.asked_us + _VISIBILITY_S * 1_000_000
            )
            if not is_free and held.asked_us != asked_us:
                self.together.append((other, body))
        if int(number) > self.latest[group] + 1:
            self.disordered.append((f"{group}/{self.latest[group] + 1}", body))
        self.latest[group] = max(self.latest[group], int(number))
        one = self.held[group][body] = self.receive(body, asked_us)
        return one

    def doubled(self) -> tuple[int, list[str]]:
        """The number of repeats that have a cause, and the bodies of repeats without a cause."""
        caused, without = 0, []
        for body, deliveries in self.got.items():
            copies = self.unsure[body] if "/" not in body else 0
            for before, one in pairwise(deliveries):
                is_over = one.at_us > before.asked_us + _VISIBILITY_S * 1_000_000
                if before.ended_us is None and (is_over or before.ending_us is not None):
                    caused += 1
                elif copies:
                    copies -= 1
                    caused += 1
                else:
                    without.append(body)
        return caused, without


class _Client:
    """A client that repeats a call, at the next server, until one answers.

    Args:
        servers: All servers.
        first: The number of the server that it asks first.
    """

    def __init__(
        self, stage: Stage, servers: list[Server], key: Key, books: _Books, first: int
    ) -> None:
        self._lines = [Connection(one.url, key, stage.clock) for one in servers]
        self._at = first % len(servers)
        self._books = books

    def close(self) -> None:
        """Disconnect."""
        for line in self._lines:
            line.close()

    async def call(self, action: str, fields: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
        """Call an action, at one server after another, until a server answers.

        Returns:
            The answer, the number of failed tries that a server may have carried out, and the time
            of the try that was answered, epoch microseconds.

        Raises:
            ShardqError: If a server refuses the call.
        """
        unseen = 0
        while True:
            line, asked_us = self._lines[self._at], machine_us()
            try:
                async with asyncio.timeout(_CALL_S):
                    answer = await line.call(action, fields)
            except ConnectionRefusedError:
                self._books.calls[f"{action}: no server"] += 1
            except (OSError, EOFError, TimeoutError):
                self._books.calls[f"{action}: no answer"] += 1
                unseen += 1
            except ShardqError as error:
                if "ServiceUnavailable" not in str(error):
                    raise
                self._books.calls[f"{action}: 503"] += 1
                unseen += 1
            else:
                self._books.calls[action] += 1
                return answer, unseen, asked_us
            line.close()
            self._at = (self._at + 1) % len(self._lines)
            await asyncio.sleep(_AGAIN_S)


def play(stage: Stage) -> list[Promise]:
    """Send, receive and delete, while servers come and go."""
    count = _MESSAGES[stage.long]
    with shardq.connect(stage.url) as db, ExitStack() as stack:
        key = key_of(stage.url)
        servers = [
            stack.enter_context(Server(stage.url, free_port(), stage.directory / f"server-{n}.log"))
            for n in range(_SERVERS)
        ]
        for one in servers:
            one.wait()
        play = _Play(stage, servers, key, count)
        began_us = machine_us()
        asyncio.run(play.run(db))
        seconds = (machine_us() - began_us) / 1e6
        audits = [_audit(stage.url, name) for name in ("orders", "steps.fifo")]
    return play.promises(seconds, audits)


def _audit(url: str, queue: str) -> tuple[int, str]:
    """The exit code of `shardq audit`, and the line with its counts."""
    done = subprocess.run(  # noqa: S603 - this program itself
        [sys.executable, "-m", "shardq", "audit", queue, "--store", url],
        capture_output=True,
        text=True,
        check=False,
    )
    said = (done.stdout + done.stderr).strip().splitlines()
    counts = [line for line in said if line.startswith(f"{queue} ")]
    return done.returncode, " ".join(counts or said[-1:])


class _Play:
    def __init__(self, stage: Stage, servers: list[Server], key: Key, count: int) -> None:
        self._stage = stage
        self._servers = servers
        self._key = key
        self._steps = count // _GROUPED_EACH // _GROUPS
        self._orders = count - self._steps * _GROUPS
        self._books = _Books()
        self._urls: dict[str, str] = {}
        self._left = iter(range(self._orders))
        self._is_over = False
        self._kills = self._stops = 0
        self._bad_ends: list[int] = []

    async def run(self, db: shardq.Connection) -> None:
        """Play to the end."""
        one = self._client(0)
        for name, more in (("orders", {}), ("steps.fifo", {"FifoQueue": "true"})):
            attributes = {"VisibilityTimeout": str(_VISIBILITY_S)} | more
            made, _, _ = await one.call(
                "CreateQueue", {"QueueName": name, "Attributes": attributes}
            )
            self._urls[name] = made["QueueUrl"]
            await asyncio.to_thread(partial(db.queue(name).alter, history="7d"))
        one.close()
        # Wait until all servers keep the history, so that it is complete.
        await asyncio.sleep(FOLLOWED_MS / 1_000 + 1)
        async with asyncio.TaskGroup() as group:
            disturbing = group.create_task(self._disturb())
            receiving = [
                group.create_task(self._receive(n, name))
                for name, many in (("orders", _RECEIVERS), ("steps.fifo", _GROUP_RECEIVERS))
                for n in range(many)
            ]
            sending = [group.create_task(self._send(n)) for n in range(_SENDERS)]
            sending += [group.create_task(self._send_steps(n)) for n in range(_GROUPS)]
            await asyncio.wait(sending)
            self._books.news_us = machine_us()
            while not self._is_done() and machine_us() < self._books.news_us + _QUIET_S * 1e6:
                await asyncio.sleep(0.2)
            # Wait for repeats: of messages that were sent twice, and of deletes that were lost.
            disturbing.cancel()
            await asyncio.sleep(_VISIBILITY_S + 5)
            self._is_over = True
            await asyncio.wait(receiving)

    def _client(self, number: int) -> _Client:
        return _Client(self._stage, self._servers, self._key, self._books, number)

    def _is_done(self) -> bool:
        books = self._books
        return all(any(one.ended_us for one in books.got.get(body, ())) for body in books.sent)

    async def _send(self, number: int) -> None:
        client = self._client(number)
        while numbers := list(islice(self._left, 10)):
            entries, due_us = [], machine_us()
            for n in numbers:
                delay_s = n % _DELAY_S_MAX if n % _DELAYED_EACH == 0 else 0
                entries.append({"Id": str(n), "MessageBody": str(n), "DelaySeconds": delay_s})
                # Record the message before it is sent, because it may be received before the answer
                # arrives.
                self._books.sent[str(n)] = due_us + delay_s * 1_000_000
            fields = {"QueueUrl": self._urls["orders"], "Entries": entries}
            answer, unseen, _ = await client.call("SendMessageBatch", fields)
            if answer.get("Failed"):
                raise ShardqError(f"a send failed: {answer['Failed']}")
            if unseen:
                self._books.unsure.update(dict.fromkeys(map(str, numbers), unseen))
        client.close()

    async def _send_steps(self, group: int) -> None:
        client = self._client(group)
        for number in range(self._steps):
            body = f"{group}/{number}"
            self._books.sent[body] = machine_us()
            fields = {
                "QueueUrl": self._urls["steps.fifo"],
                "MessageBody": body,
                "MessageGroupId": str(group),
                "MessageDeduplicationId": body,
            }
            await client.call("SendMessage", fields)
        client.close()

    async def _receive(self, number: int, name: str) -> None:
        client = self._client(number)
        asked = {"QueueUrl": self._urls[name], "MaxNumberOfMessages": 10, "WaitTimeSeconds": 2}
        note = self._books.receive_step if name == "steps.fifo" else self._books.receive
        while not self._is_over:
            answer, _, asked_us = await client.call("ReceiveMessage", asked)
            found = answer.get("Messages", [])
            if not found:
                continue
            got = [note(one["Body"], asked_us) for one in found]
            entries = [
                {"Id": str(n), "ReceiptHandle": one["ReceiptHandle"]} for n, one in enumerate(found)
            ]
            for one in got:
                one.ending_us = machine_us()
            fields = {"QueueUrl": self._urls[name], "Entries": entries}
            ended, _, _ = await client.call("DeleteMessageBatch", fields)
            for done in ended.get("Successful", []):
                got[int(done["Id"])].ended_us = machine_us()
            for failed in ended.get("Failed", []):
                self._books.calls[f"DeleteMessageBatch: {failed['Code']}"] += 1
                got[int(failed["Id"])].ending_us = None
        client.close()

    async def _disturb(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(_DISTURBED_S)
            one = self._servers[turn % len(self._servers)]
            if turn % 2:
                self._bad_ends += [code for code in [await asyncio.to_thread(one.end)] if code]
                self._stops += 1
            else:
                await asyncio.to_thread(one.kill)
                self._kills += 1
            one.start()
            await asyncio.to_thread(one.wait)
            turn += 1

    def promises(self, seconds: float, audits: list[tuple[int, str]]) -> list[Promise]:
        """The promises, with their judgement."""
        books = self._books
        lost = [body for body in books.sent if body not in books.got]
        left = [b for b in books.sent if not any(one.ended_us for one in books.got.get(b, ()))]
        caused, without = books.doubled()
        calls = ", ".join(f"{name} {many:,}" for name, many in sorted(books.calls.items()))
        return [
            Promise(
                "server",
                "nothing lost",
                f"{len(books.sent):,} messages in {seconds:.0f} s, {self._kills} kills and "
                f"{self._stops} stops: lost {len(lost)} {lost[:5] or ''}, not deleted {len(left)}",
                not (lost or left),
            ),
            Promise("server", "nothing early", f"early {len(books.early)}", not books.early),
            Promise(
                "server",
                "doubled only what was in flight",
                f"{caused} with a cause, {len(without)} without {without[:5] or ''}",
                not without,
            ),
            Promise(
                "server",
                "groups one at a time, in order",
                f"{self._steps * _GROUPS:,} in {_GROUPS} groups: together {len(books.together)} "
                f"{books.together[:3] or ''}, out of order {len(books.disordered)} "
                f"{books.disordered[:3] or ''}",
                not (books.together or books.disordered),
            ),
            Promise(
                "server",
                "stopped servers end by themselves",
                f"{self._stops} stops, exit codes that are not 0: {self._bad_ends or 'none'}",
                not self._bad_ends,
            ),
            Promise(
                "server",
                "audits balance",
                "; ".join(f"{code}: {said}" for code, said in audits),
                not any(code for code, _ in audits),
            ),
            Promise("server", "calls", calls),
        ]
