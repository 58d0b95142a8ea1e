"""TLS to Cassandra: by which name a node's certificate is checked."""

from __future__ import annotations

import socket
import ssl
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
import trustme

from shardq.errors import StoreError
from shardq.stores.cassandra import CassandraStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HEADER_BYTES = 9
"""The header of a frame of Cassandra's protocol, sent once a client trusts the node."""


@contextmanager
def node(authority: trustme.CA, *names: str) -> Iterator[tuple[int, list[str]]]:
    """A port that presents a certificate for these names, and what became of each connection."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    met: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    plain, _ = listening.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(plain, server_side=True) as line:
                        met.append("trusted" if len(line.recv(HEADER_BYTES)) else "left")
                except OSError:
                    met.append("refused")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1], met
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize(
    ("names", "host", "options", "is_trusted"),
    [
        (["localhost"], "localhost", "", True),
        (["localhost"], "127.0.0.1", "", False),
        (["127.0.0.1"], "127.0.0.1", "", True),
        (["db.example"], "localhost", "", False),
        (["db.example"], "localhost", "&tls_name=db.example", True),
        (["localhost"], "localhost", "&tls_name=db.example", False),
    ],
)
def test_a_certificate_is_checked_for_the_name_in_the_url(
    tmp_path: Path, names: list[str], host: str, options: str, *, is_trusted: bool
) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with node(authority, *names) as (port, met):
        url = f"cassandra://{host}:{port}/jobs?tls=on&ca={tmp_path}/ca.pem&timeout=2s{options}"
        store = CassandraStore.from_url(url)
        with pytest.raises(StoreError):
            store.open()
        store.close()
    assert ("trusted" in met) == is_trusted
    assert met


def test_any_host_checks_the_authority_alone(tmp_path: Path) -> None:
    trusted, other = trustme.CA(), trustme.CA()
    trusted.cert_pem.write_to_path(tmp_path / "ca.pem")
    for authority, found in ((trusted, True), (other, False)):
        with node(authority, "db.example") as (port, met):
            store = CassandraStore.from_url(
                f"cassandra://localhost:{port}/jobs?tls=any-host&ca={tmp_path}/ca.pem&timeout=2s"
            )
            with pytest.raises(StoreError):
                store.open()
            store.close()
        assert ("trusted" in met) == found
