"""A server in a thread of the test's process, on a free port of loopback."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import boto3
import uvicorn
from botocore.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def hosted(application: Any) -> Iterator[str]:
    """Serve an ASGI application; gives its url."""
    # asyncio sends small packets at once on a socket of this protocol.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1_024)
    config = uvicorn.Config(application, log_config=None, timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)

    def serve() -> None:
        asyncio.run(server.serve([listening]))

    thread = threading.Thread(target=serve, name="hosted")
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()


def sqs_at(url: str, *, region: str = "us-east-1", key: str = "test", secret: str = "test") -> Any:
    """A client of boto3 that asks once, and signs."""
    return boto3.client(
        "sqs",
        endpoint_url=url,
        region_name=region,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}, read_timeout=60),
    )
