"""Network cuts on loopback: packets to an address and port are dropped without an error.

A filter of the kernel's traffic control drops them, which needs root. All nodes connect from
127.0.0.1, so only the way to a node's port can be cut: neither requests nor answers reach the node,
while packets that it sends still arrive. That is the worse half of a cut, because others carry out
its writes, and it never learns that.
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
"""The priority of our filters, which tells them from others."""

# Offsets in an Ethernet frame with an IP header without options; loopback has such frames too.
_TO_ADDRESS, _TO_PORT = 30, 36
_LOAD_WORD, _LOAD_HALF, _JUMP_IF_EQUAL, _RETURN = 32, 40, 21, 6
_DROP, _GO_ON = 2, 0xFFFFFFFF


def lacking() -> str | None:
    """Why packets cannot be dropped here; None if they can."""
    if os.geteuid() != 0:
        return "root"
    return None if shutil.which("tc") else "tc, of iproute2"


@contextmanager
def cut(*ways: tuple[str, int]) -> Iterator[Callable[[], int]]:
    """While this lasts, nothing reaches these addresses and ports; yields a counter of drops."""
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
    """The filter program, for `tc`, that drops packets to an address and port."""
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
    """The number of packets that filters on loopback have dropped."""
    told = _tc("-s", "qdisc", "show", "dev", "lo").stdout
    found = re.search(r"qdisc clsact.*?dropped (\d+)", told, re.DOTALL)
    return int(found[1]) if found else 0


def _tc(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["tc", *arguments], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise OSError(f"tc {' '.join(arguments)}: {done.stderr.strip()}")
    return done
