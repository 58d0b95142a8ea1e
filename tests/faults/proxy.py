"""A proxy before each node. It loses or delays answers after the node has carried a call out.

```
 client ── segments ─► envelope ─► which statement? remembered by stream ─► node
        ◄─ segments ── lost, late or passed on ◄── envelope ◄── segments ──
```

Clients of the proxies never learn the addresses of the nodes, because a proxy replaces them in
what nodes report of each other. It speaks CQL's protocol 5 with the driver's own framing.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import random
import struct
import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cassandra import connection as driver

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_ENVELOPE = struct.Struct(">BBhBI")
_STARTUP, _RESULT, _PREPARE, EXECUTE, _EVENT, BATCH = 0x01, 0x08, 0x09, 0x0A, 0x0C, 0x0D
_PREPARED = 4
_LOGGED = 0
"""The type of a batch that is atomic over partitions: moves of rows are such batches."""
_SEGMENT_BYTES_MAX = 1 << 18


class Fate(NamedTuple):
    """The fate of answers to one kind of statement.

    Attributes:
        one_in: Among this many answers one is lost and one is late, chosen at random.
        late_s: The longest delay, seconds.
    """

    one_in: int
    late_s: float


class _Frames:
    """Divides one direction of a connection into envelopes: bare first, then in segments."""

    def __init__(self) -> None:
        self._codec: driver.SegmentCodec | None = None
        self._read = bytearray()
        self._payload = bytearray()

    def use_segments(self, codec: driver.SegmentCodec) -> None:
        """Expect envelopes in segments from the next byte on."""
        self._codec = codec

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes; yields the envelopes that they complete."""
        self._read += data
        while True:
            if self._codec is not None:
                self._unpack(self._codec)
                one = self._envelope(self._payload)
            else:
                one = self._envelope(self._read)
            if one is None:
                return
            yield one

    def pack(self, envelope: bytes) -> bytes:
        """The bytes of an envelope on the wire."""
        if self._codec is None:
            return envelope
        out = io.BytesIO()
        self._codec.encode(out, envelope)
        return out.getvalue()

    def _unpack(self, codec: driver.SegmentCodec) -> None:
        while len(self._read) >= codec.header_length_with_crc:
            buffer = io.BytesIO(self._read)
            header = codec.decode_header(buffer)
            end = codec.header_length_with_crc + header.payload_length + 4
            if len(self._read) < end:
                return
            self._payload += codec.decode(buffer, header).payload
            del self._read[:end]

    @staticmethod
    def _envelope(data: bytearray) -> bytes | None:
        if len(data) < _ENVELOPE.size:
            return None
        end = _ENVELOPE.size + _ENVELOPE.unpack_from(data)[4]
        if len(data) < end:
            return None
        one = bytes(data[:end])
        del data[:end]
        return one


@dataclass
class _Link:
    """One client's connection to one node."""

    requests: _Frames = field(default_factory=_Frames)
    answers: _Frames = field(default_factory=_Frames)
    codec: driver.SegmentCodec | None = None
    preparing: dict[int, str] = field(default_factory=dict)
    kinds: dict[int, str] = field(default_factory=dict)


class Proxy:
    """A context manager: proxies of nodes, in a thread of their own.

    Args:
        nodes: The nodes' addresses.
        port: The port of the nodes and of the proxies.
        seed: The seed of the random choices.

    Attributes:
        fates: Kind -> the fate of its answers: `lwt`, `move` (a batch that moves rows) or `write`
            (any other). Answers of other kinds are passed on.
        addresses: The addresses of the proxies, one for each node.
        counts: The numbers of answers by kind and fate.
    """

    def __init__(self, nodes: Sequence[str], port: int, seed: int) -> None:
        self.addresses = [_beside(address) for address in nodes]
        self.fates: Mapping[str, Fate] = {}
        self.counts: Counter[str] = Counter()
        self._nodes = list(nodes)
        self._port = port
        self._chance = random.Random(seed)
        self._decks: dict[str, list[str]] = defaultdict(list)
        self._texts: dict[bytes, str] = {}
        self._told = [
            (_told(real), _told(ours)) for real, ours in zip(nodes, self.addresses, strict=True)
        ]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    def __enter__(self) -> Proxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> None:
        for node, ours in zip(self._nodes, self.addresses, strict=True):

            async def accept(
                reader: asyncio.StreamReader, writer: asyncio.StreamWriter, node: str = node
            ) -> None:
                await self._serve(reader, writer, node)

            self._servers.append(await asyncio.start_server(accept, ours, self._port))

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(
        self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter, address: str
    ) -> None:
        link = _Link()
        try:
            node, to_node = await asyncio.open_connection(address, self._port)
        except OSError:
            to_client.close()
            return
        pumps = [
            asyncio.ensure_future(self._requests(client, to_node, link)),
            asyncio.ensure_future(self._answers(node, to_client, link)),
        ]
        self._tasks.update(pumps)
        await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._tasks.difference_update(pumps)
        for end in (to_client, to_node):
            end.close()

    async def _requests(
        self, client: asyncio.StreamReader, to_node: asyncio.StreamWriter, link: _Link
    ) -> None:
        while data := await client.read(_SEGMENT_BYTES_MAX):
            for envelope in link.requests.feed(data):
                to_node.write(link.requests.pack(envelope))
                self._remember(envelope, link)
            await to_node.drain()

    async def _answers(
        self, node: asyncio.StreamReader, to_client: asyncio.StreamWriter, link: _Link
    ) -> None:
        while data := await node.read(_SEGMENT_BYTES_MAX):
            for envelope in link.answers.feed(data):
                self._answer(envelope, to_client, link)
            await to_client.drain()

    def _remember(self, envelope: bytes, link: _Link) -> None:
        """Record the kind of a request until its answer comes."""
        _, _, stream, opcode, _ = _ENVELOPE.unpack_from(envelope)
        body = envelope[_ENVELOPE.size :]
        if opcode == _STARTUP:
            lz4 = b"lz4" in body
            link.codec = driver.segment_codec_lz4 if lz4 else driver.segment_codec_no_compression
            link.requests.use_segments(link.codec)
        elif opcode == _PREPARE:
            link.preparing[stream] = body[4:].decode(errors="replace")
        elif opcode in {EXECUTE, BATCH}:
            kind = kind_of(opcode, body, self._texts)
            if kind is not None:
                link.kinds[stream] = kind

    def _answer(self, envelope: bytes, to_client: asyncio.StreamWriter, link: _Link) -> None:
        _, _, stream, opcode, _ = _ENVELOPE.unpack_from(envelope)
        body = envelope[_ENVELOPE.size :]
        asked = link.preparing.pop(stream, None)
        if asked is not None and opcode == _RESULT and body[:4] == struct.pack(">i", _PREPARED):
            (length,) = struct.unpack_from(">H", body, 4)
            self._texts[body[6 : 6 + length]] = asked
        if opcode in {_RESULT, _EVENT}:
            for real, ours in self._told:
                envelope = envelope.replace(real, ours)
        packed = link.answers.pack(envelope)
        if link.codec is not None:
            # The answer to STARTUP is the last envelope outside a segment.
            link.answers.use_segments(link.codec)
            link.codec = None
        kind = link.kinds.pop(stream, None)
        delay_s = 0.0 if kind is None else self._choose(kind)
        if delay_s == 0:
            to_client.write(packed)
        elif delay_s > 0:
            self._loop.call_later(delay_s, self._write_late, to_client, packed)

    def _choose(self, kind: str) -> float:
        """The seconds by which an answer is delayed; below 0: it is lost."""
        fate = self.fates.get(kind)
        if fate is None:
            return 0.0
        if not self._decks[kind]:
            deck = ["lost", "late", *["passed"] * (fate.one_in - 2)]
            self._chance.shuffle(deck)
            self._decks[kind] = deck
        drawn = self._decks[kind].pop()
        self.counts[f"{kind} {drawn}"] += 1
        if drawn == "late":
            return self._chance.uniform(0.01, fate.late_s)
        return -1.0 if drawn == "lost" else 0.0

    @staticmethod
    def _write_late(to_client: asyncio.StreamWriter, packed: bytes) -> None:
        with contextlib.suppress(OSError):
            if not to_client.is_closing():
                to_client.write(packed)


def kind_of(opcode: int, body: bytes, texts: Mapping[bytes, str]) -> str | None:
    """The kind of a request, `lwt`, `move` or `write`; None for a read, whose answer is kept.

    Args:
        opcode: `EXECUTE` or `BATCH`.
        body: The rest of its envelope.
        texts: Id -> text of each prepared statement.
    """
    if opcode == BATCH and body[0] == _LOGGED:
        return "move"
    # A batch begins with its type, the number of its statements, and the first one's kind.
    start = 4 if opcode == BATCH else 0
    (length,) = struct.unpack_from(">H", body, start)
    text = texts.get(body[start + 2 : start + 2 + length], "")
    if text.startswith("SELECT"):
        return None
    return "lwt" if " IF " in text else "write"


def _beside(address: str) -> str:
    """The address of a node's proxy: 127.0.1.11 for 127.0.0.11."""
    first, second, _, last = address.split(".")
    return f"{first}.{second}.1.{last}"


def _told(address: str) -> bytes:
    """An address as nodes send it, from its length's last byte on."""
    return b"\x04" + bytes(map(int, address.split(".")))
