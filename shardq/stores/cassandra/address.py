"""The url of a Cassandra keyspace, read into the driver's parameters. Connects to nothing."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from shardq.errors import BadName, BadTime, BadUrl
from shardq.model import names
from shardq.model.times import duration_ms
from shardq.stores.url import split

if TYPE_CHECKING:
    from collections.abc import Callable

PORT = 9042
KEYSPACE = "shardq"
TIMEOUT_MS = 10_000

CONSISTENCIES = ("local_quorum", "quorum", "all")
"""Consistency levels to choose from. Less than a quorum would miss rows and leases."""

TLS = ("off", "on", "any-host")
"""`any-host` checks the authority that signed the certificate, but not the name in it."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a keyspace, and how to connect to it.

    Attributes:
        hosts: Contact points.
        port: The CQL port of every node.
        keyspace: The keyspace's name.
        dc: The data centre to use; None: the first contact point's data centre.
        user: The user to log in; None: no login.
        password: The user's password, never shown.
        consistency: One of `CONSISTENCIES`.
        tls: One of `TLS`.
        ca: PEM file of the authority; None takes the system's.
        cert: PEM file of this client's certificate and key, if the server asks for one.
        tls_name: The name in every node's certificate; None: the node's name in the url, else its
            address.
        timeout_ms: How long a request may take.
        replication: Copies of a row that `init` asks for; None: `init` chooses.
        trace: True to count the tombstones of each read, by tracing; for benchmarks.
    """

    hosts: tuple[str, ...]
    port: int = PORT
    keyspace: str = KEYSPACE
    dc: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    consistency: str = "local_quorum"
    tls: str = "off"
    ca: str | None = None
    cert: str | None = None
    tls_name: str | None = None
    timeout_ms: int = TIMEOUT_MS
    replication: int | None = None
    trace: bool = False

    @property
    def seconds(self) -> float:
        """How long a request may take, seconds."""
        return self.timeout_ms / 1_000

    @property
    def shown(self) -> str:
        """The address for people, without user and password."""
        return f"cassandra://{','.join(self.hosts)}:{self.port}/{self.keyspace}"


def read_url(url: str) -> Address:
    """The address that a url names.

    Args:
        url: `cassandra://[user:password@]host1,host2[:9042][/keyspace][?option=value&..]`.

    Raises:
        BadUrl: If hosts, port, keyspace or an option cannot be used; the password is not shown.
    """
    parts = split(url)
    if "@" in parts.path + parts.query or parts.fragment:
        # A password with one of these characters would be cut, and an error might show the rest.
        raise BadUrl(
            "the cassandra url has a '#', or an '@' behind its hosts; where a user, password or "
            "option has one of / ? # @ & in it, write %2F %3F %23 %40 %26."
        )
    try:
        options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # The error's text may quote a part of the password, and a cause is printed too.
        raise BadUrl(
            "the options of the cassandra url cannot be read; write ?name=value&name=value, "
            "and %26 for an & within a value."
        ) from None
    login, _, places = parts.netloc.rpartition("@")
    hosts, port = _hosts(places)
    user, colon, password = login.partition(":")
    chosen: dict[str, object] = {"hosts": hosts, "port": port}
    if parts.path.strip("/"):
        chosen["keyspace"] = _keyspace(parts.path.strip("/"))
    if user:
        chosen["user"] = unquote(user)
    if colon:
        chosen["password"] = unquote(password)
    for name, value in options:
        if name not in _OPTIONS:
            raise BadUrl(
                f"unknown option {name!r} in the cassandra url; there are "
                f"{', '.join(sorted(_OPTIONS))}."
            )
        stored, reader = _OPTIONS[name]
        chosen[stored] = reader(value, name)
    if "user" in chosen and "password" not in chosen:
        raise BadUrl("the cassandra url has a user but no password; add password_env=VARIABLE.")
    if "password" in chosen and "user" not in chosen:
        raise BadUrl("the cassandra url has a password but no user; add user=NAME.")
    _check_tls(chosen)
    return Address(**chosen)  # type: ignore[arg-type] # each reader returns its field's type


def _check_tls(chosen: dict[str, object]) -> None:
    """Refuse options for TLS if TLS is off: the connection would be in plain text."""
    for name in ("ca", "cert", "tls_name"):
        if name in chosen and chosen.get("tls", "off") == "off":
            raise BadUrl(f"{name}= of the cassandra url is for TLS; add tls=on, or leave it out.")


def _hosts(places: str) -> tuple[tuple[str, ...], int]:
    ports = set()
    hosts = []
    for place in places.split(","):
        host, port = _host(place)
        if not _is_host(host):
            raise BadUrl(
                f"host {host!r} of the cassandra url cannot be read; "
                f"write cassandra://host1,host2:9042/keyspace."
            )
        hosts.append(host)
        if port:
            ports.add(_whole(port, "port", 1, 65_535))
    if len(ports) > 1:
        raise BadUrl("all hosts of a cassandra url use one port; name it once, after the last.")
    return tuple(hosts), ports.pop() if ports else PORT


def _is_host(host: str) -> bool:
    try:
        # The resolver encodes a host too, and would raise an error that is not one of shardq's.
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host) and all(c.isalnum() or c in ".-_:%" for c in host)


def _host(place: str) -> tuple[str, str]:
    if place.startswith("["):  # an IPv6 address
        host, _, rest = place[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = place.partition(":")
    return host, port


def _keyspace(name: str) -> str:
    try:
        return names.keyspace_name(name)
    except BadName as error:
        raise BadUrl(f"in the cassandra url, {error}") from error


def _whole(text: str, name: str, least: int, most: int) -> int:
    if text.isascii() and text.isdigit() and len(text) <= 9 and least <= int(text) <= most:
        return int(text)
    # The error never shows the text: it may be the rest of a password that has a slash in it.
    raise BadUrl(f"{name} of the cassandra url must be a whole number, {least} to {most}.")


def _text(value: str, name: str) -> str:
    if value and value.isprintable():
        return value
    raise BadUrl(f"option {name!r} of the cassandra url is empty or not printable.")


def _secret(value: str, name: str) -> str:
    if value:
        return value
    raise BadUrl(f"option {name!r} of the cassandra url is empty.")


def _secret_from_environment(value: str, name: str) -> str:
    if value in os.environ:
        return os.environ[value]
    raise BadUrl(f"{name}={value} of the cassandra url names a variable that is not set.")


def _choice(choices: tuple[str, ...]) -> Callable[[str, str], str]:
    def read(value: str, name: str) -> str:
        if value in choices:
            return value
        raise BadUrl(
            f"option {name!r} of the cassandra url must be one of {', '.join(choices)}, "
            f"not {value!r}."
        )

    return read


def _file(value: str, name: str) -> str:
    if os.path.isfile(value):
        return value
    raise BadUrl(f"option {name!r} of the cassandra url names no file: {value!r}.")


def _timeout(value: str, name: str) -> int:
    try:
        millis = duration_ms(value, name=name)
    except BadTime as error:
        raise BadUrl(f"in the cassandra url, {error}") from error
    if not 100 <= millis <= 600_000:
        raise BadUrl(f"{name} of the cassandra url must be 100ms to 10m, not {value!r}.")
    return millis


def _replication(value: str, name: str) -> int:
    return _whole(value, name, 1, 9)


def _trace(value: str, name: str) -> bool:
    return _choice(("tombstones",))(value, name) == "tombstones"


_OPTIONS: dict[str, tuple[str, Callable[[str, str], object]]] = {
    "dc": ("dc", _text),
    "user": ("user", _text),
    "password": ("password", _secret),
    "password_env": ("password", _secret_from_environment),
    "consistency": ("consistency", _choice(CONSISTENCIES)),
    "tls": ("tls", _choice(TLS)),
    "ca": ("ca", _file),
    "cert": ("cert", _file),
    "tls_name": ("tls_name", _text),
    "timeout": ("timeout_ms", _timeout),
    "replication": ("replication", _replication),
    "trace": ("trace", _trace),
}
