"""The headers by which a message carries a trace, those of W3C Trace Context."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
_STATE_CHARS_MAX = 512
"""The length of `tracestate` that each system has to pass on at least."""
_PARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}", re.ASCII
)


def carried(trace: Mapping[str, str], headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of a message that is put within a trace. Headers that name a trace keep it.

    >>> carried({"traceparent": "00-a"}, {"lang": "de"})
    {'traceparent': '00-a', 'lang': 'de'}
    >>> carried({"traceparent": "00-a", "tracestate": "x=1"}, {"traceparent": "00-b"})
    {'traceparent': '00-b'}
    """
    return dict(headers) if TRACEPARENT in headers else {**trace, **headers}


def asked_in(headers: Mapping[str, str]) -> dict[str, str]:
    """The trace of an HTTP request; empty if it has none, or a damaged one.

    Args:
        headers: Name, in lower case -> value.

    >>> asked_in({"traceparent": "00-" + 32 * "a" + "-" + 16 * "b" + "-01", "host": "localhost"})
    {'traceparent': '00-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa-bbbbbbbbbbbbbbbb-01'}
    >>> asked_in({"traceparent": "00-" + 32 * "0" + "-" + 16 * "b" + "-01"})
    {}
    """
    parent, state = headers.get(TRACEPARENT, ""), headers.get(TRACESTATE, "")
    if not _PARENT.fullmatch(parent):
        return {}
    is_kept = 0 < len(state) <= _STATE_CHARS_MAX and state.isascii() and state.isprintable()
    return {TRACEPARENT: parent} | ({TRACESTATE: state} if is_kept else {})
