"""Nodes with the names by which their certificates are checked.

The driver (3.30) forgets a host's name once it is resolved, and would check the certificate for the
address. The classes here keep the url's name of each address, and pass it to the driver.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from cassandra.connection import DefaultEndPoint, DefaultEndPointFactory

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardq.stores.cassandra.address import Address


class NamedNode(DefaultEndPoint):  # type: ignore[misc] # the driver has no types
    """A node's address and the name to check; equal to the driver's own object for the address."""

    def __init__(self, address: str, port: int, name: str) -> None:
        super().__init__(address, port)
        self._name = name

    @property
    def ssl_options(self) -> dict[str, Any]:
        """Arguments that the driver passes to `SSLContext.wrap_socket`."""
        return {"server_hostname": self._name}


class NamedNodes(DefaultEndPointFactory):  # type: ignore[misc]
    """Makes nodes of the rows of `system.peers`.

    Args:
        names: Address -> name of each node that the url names.
        every: The name in every node's certificate; None: the node's name, else its address.
    """

    def __init__(self, port: int, names: Mapping[str, str], every: str | None) -> None:
        super().__init__(port)
        self._names = names
        self._every = every

    def named(self, address: str, port: int) -> NamedNode:
        """The node at an address."""
        return NamedNode(address, port, self._every or self._names.get(address, address))

    def create(self, row: Any) -> NamedNode:
        """The node in a row of the cluster's own tables."""
        found = super().create(row)
        return self.named(found.address, found.port)


def named_nodes(address: Address) -> tuple[list[NamedNode], NamedNodes]:
    """The nodes of a url, and the factory of nodes that are discovered.

    A host whose name has no known address is left out, because another host may be reached.
    """
    names: dict[str, str] = {}
    for host in address.hosts:
        try:
            found = socket.getaddrinfo(host, address.port, type=socket.SOCK_STREAM)
        except OSError:
            continue
        for *_, place in found:
            names.setdefault(str(place[0]), host)
    nodes = NamedNodes(address.port, names, address.tls_name)
    return [nodes.named(one, address.port) for one in names], nodes
