"""Network cuts on loopback: packets to an address and port are dropped without a word.

A filter of the kernel's traffic control, which needs root. Nodes connect from 127.0.0.1 whoever
they are, so what can be cut is the way to a node's port: nothing reaches it, neither requests nor
the answers to its own, while what it sends itself still arrives. That is the worse half of a cut,
for what it asks others to write is written, and nobody tells it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PREFERENCE = "4711"
"""Where our filters are, among others that may be there."""

# Offsets in an Ethernet frame, as loopback has it too, with an IP header without options.
_TO_ADDRESS, _TO_PORT = 30, 36
_LOAD_WORD, _LOAD_HALF, _JUMP_IF_EQUAL, _RETURN = 32, 40, 21, 6
_DROP, _GO_ON = 2, 0xFFFFFFFF


def lacking() -> str | None:
    """Why packets cannot be dropped here; None where they can be."""
    if os.geteuid() != 0:
        return "root"
    return None if shutil.which("tc") else "tc, of iproute2"


@contextmanager
def cut(*ways: tuple[str, int]) -> Iterator[Callable[[], int]]:
    """While this lasts, nothing reaches these addresses and ports; yields what counts the drops."""
    added = _tc("qdisc", "add", "dev", "lo", "clsact", check=False).returncode == 0
    before = _dropped()
    try:
        for way in ways:
            _tc("filter", "add", *_ON_LO, "bpf", "da", "bytecode", _dropping(*way))
        yield lambda: count
    finally:
        _tc("filter", "del", *_ON_LO, check=False)
        count = _dropped() - before
        if added:
            _tc("qdisc", "del", "dev", "lo", "clsact")


_ON_LO = ("dev", "lo", "egress", "protocol", "ip", "pref", _PREFERENCE)


def _dropping(address: str, port: int) -> str:
    """The program that drops what goes there, as `tc` reads it."""
    program = [
        (_LOAD_WORD, 0, 0, _TO_ADDRESS),
        (_JUMP_IF_EQUAL, 0, 3, int(ipaddress.IPv4Address(address))),
        (_LOAD_HALF, 0, 0, _TO_PORT),
        (_JUMP_IF_EQUAL, 0, 1, port),
        (_RETURN, 0, 0, _DROP),
        (_RETURN, 0, 0, _GO_ON),
    ]
    return ",".join([str(len(program)), *(" ".join(map(str, step)) for step in program)])


def _dropped() -> int:
    """Packets that filters on loopback have dropped so far."""
    told = _tc("-s", "qdisc", "show", "dev", "lo").stdout
    found = re.search(r"qdisc clsact.*?dropped (\d+)", told, re.DOTALL)
    return int(found[1]) if found else 0


def _tc(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["tc", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"tc {' '.join(arguments)}: {done.stderr.strip()}")
    return done
