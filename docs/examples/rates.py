"""Ask an API that fails now and then, and keep what it has answered."""

import json
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from shardq import App, Bury, Retry
from shardq.tasks import Backoff

app = App()

SERVER_ERROR = 500
TOO_MANY = 429


@app.task(
    queue="rates",
    attempts=8,
    backoff=Backoff("1s", factor=3, longest="10m"),
    retry_on=(URLError, TimeoutError),
    timeout="30s",
    keep="1d",
)
def fetch(url: str) -> dict[str, float]:
    try:
        with urlopen(url, timeout=10) as answer:
            rates: dict[str, float] = json.load(answer)
            return rates
    except HTTPError as error:
        error.close()
        if error.code == TOO_MANY:
            # It says itself how long to wait.
            raise Retry(f"{error.headers.get('Retry-After', 60)}s", reason=str(error)) from None
        if error.code < SERVER_ERROR:
            raise Bury(str(error)) from None  # we are wrong, and stay so
        raise
