"""Send a letter to many readers, spread over an hour."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from shardq import App

app = App()


@app.task(queue="newsletter", attempts=3, expires="1d")
async def send(issue: int, reader: str) -> None:
    """Stands for a call of a mail service."""


def publish(issue: int, readers: Sequence[str], over: timedelta = timedelta(hours=1)) -> int:
    """Put a job for each reader, one after the other all through that time."""
    begin, step = datetime.now(UTC), over / len(readers)
    return send.put_many(
        send.using(due=begin + number * step).of(issue, reader)
        for number, reader in enumerate(readers)
    )
