"""Asks a node, by CQL's native protocol, if it answers and reaches the others.

`nodetool` would report the same, but starts Java: that takes a second of a core for each node, and
ten seconds while nodes start. The frames are version 4's, as in Cassandra's
`native_protocol_v4.spec`.
"""

from __future__ import annotations

import socket
import struct

_ANSWER_S = 2.0
_READ_S = 6.0
"""The longest wait for an answer: a coordinator answers within its `read_request_timeout` of 5
s."""
_HEADER = struct.Struct(">BBhBI")
_VERSION, _RESPONSE = 0x04, 0x84
_STARTUP, _READY, _AUTHENTICATE = 0x01, 0x02, 0x03
_OPTIONS, _SUPPORTED = 0x05, 0x06
_QUERY, _RESULT = 0x07, 0x08
_VERSION_WANTED = b"\0\1\0\x0bCQL_VERSION\0\x053.0.0"
REPLICAS = 3
"""The number of nodes that have each row of the table in `_ASKED`, which is Cassandra's own."""
_ASKED = b"SELECT keyspace_name FROM system_distributed.view_build_status"
"""A read of an entire empty table, so that no range of the ring is left out."""


def answers(address: str, port: int) -> bool:
    """True if a node speaks CQL: one OPTIONS, one SUPPORTED."""
    try:
        with socket.create_connection((address, port), timeout=_ANSWER_S) as peer:
            return _ask(peer, _OPTIONS, b"") == _SUPPORTED
    except OSError:
        return False


def reaches(address: str, port: int, count: int) -> bool:
    """True if a node gets the answers of some replicas, itself included, for the whole ring.

    A node whose `authenticator` wants a login cannot be asked, and counts as reaching them.

    Args:
        address: The node's address.
        port: Its CQL port.
        count: From 1 to `REPLICAS`; the protocol's levels ONE, TWO and THREE are these numbers.
    """
    query = struct.pack(f">I{len(_ASKED)}sHB", len(_ASKED), _ASKED, count, 0)
    try:
        with socket.create_connection((address, port), timeout=_READ_S) as peer:
            told = _ask(peer, _STARTUP, _VERSION_WANTED)
            if told == _AUTHENTICATE:
                return True
            return told == _READY and _ask(peer, _QUERY, query) == _RESULT
    except OSError:
        return False


def _ask(peer: socket.socket, opcode: int, body: bytes) -> int | None:
    """Send a request; returns the kind of the answer, or None without one."""
    peer.sendall(_HEADER.pack(_VERSION, 0, 0, opcode, len(body)) + body)
    header = _received(peer, _HEADER.size)
    if len(header) < _HEADER.size:
        return None
    version, _, _, told, length = _HEADER.unpack(header)
    _received(peer, length)
    return int(told) if version == _RESPONSE else None


def _received(peer: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (part := peer.recv(count - len(data))):
        data += part
    return data
