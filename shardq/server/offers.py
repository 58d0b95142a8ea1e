"""Offers to upgrade a connection to another protocol, which the server ignores.

Java's HttpClient offers HTTP/2 with the first request of each connection. The parser would take the
body of such a request for the other protocol, and lose it.
"""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class _NoMore(list[Any]):
    """A list that drops the fields after a chunked body, which have no bound."""

    def append(self, _field: object) -> None:
        """Drop a field."""


class Plain(HttpToolsProtocol):
    """uvicorn's protocol on httptools, which answers HTTP/1.1 whatever protocol is offered."""

    def data_received(self, data: bytes) -> None:
        """Take data that has arrived."""
        self._unset_keepalive_if_required()
        try:
            while data:
                data = self._feed(data)
        except httptools.HttpParserError:
            self.send_400_response("This is no HTTP request.")

    def _feed(self, data: bytes) -> bytes:
        """Parse data; where it offers an upgrade, returns the data to parse instead."""
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            left = self._without_offer() + data[offer.args[0] :]
            self.parser = httptools.HttpRequestParser(self)
            self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            return left
        return b""

    def _without_offer(self) -> bytes:
        """The head of the request that offers an upgrade, without the offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            raise httptools.HttpParserError
        lines = [b"%s %s HTTP/%s" % (method, self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % field for field in self.headers if field[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_headers_complete(self) -> None:
        """Begin the request; its head is whole."""
        if not self.parser.should_upgrade():
            super().on_headers_complete()
            self.headers = _NoMore()

    def on_message_complete(self) -> None:
        """End the body."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
