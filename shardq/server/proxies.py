"""The client behind proxies, by the `X-Forwarded-*` headers that trusted proxies send."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import ip_address
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from ipaddress import IPv4Network, IPv6Network


def seen_through(
    trusted: tuple[IPv4Network | IPv6Network, ...],
    headers: Mapping[str, str],
    peer: str,
    scheme: str,
) -> tuple[str, str, str]:
    """The client's address, its scheme, and the host that it asked.

    Args:
        trusted: The proxies that are believed.
        headers: The request's, by names in lower case.
        peer: The address that the connection comes from.
        scheme: The scheme of the connection.

    Returns:
        The address of the nearest hop that is no trusted proxy; the scheme and the host as the
        nearest trusted proxy names them, else those of the connection.
    """
    host = headers.get("host", "")
    if not is_trusted(peer, trusted):
        return peer, scheme, host
    client = peer
    for hop in reversed(headers.get("x-forwarded-for", "").split(",")):
        if not hop.strip():
            continue
        client = hop.strip()
        if not is_trusted(client, trusted):
            break
    told = headers.get("x-forwarded-proto", "").rpartition(",")[2].strip().lower()
    host = headers.get("x-forwarded-host", "").rpartition(",")[2].strip() or host
    return client, told if told in {"http", "https"} else scheme, host


@lru_cache(1_024)
def is_trusted(address: str, trusted: tuple[IPv4Network | IPv6Network, ...]) -> bool:
    """True if an address is that of a proxy whose headers are believed."""
    try:
        found = ip_address(address)
    except ValueError:
        return False
    return any(found in network for network in trusted)
