"""The command of `scripts/prove`: plays chosen proofs on a store."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from proofs import catchup, crash, growth, lanes, pages, purge, server, timers
from proofs.promise import Promise
from proofs.stage import Stage
from shardq.bench.place import BenchPlace
from shardq.clock import SystemClock
from shardq.errors import ShardqError

if TYPE_CHECKING:
    from collections.abc import Callable

_PROOFS: dict[str, Callable[[Stage], list[Promise]]] = {
    "timers": timers.play,
    "catchup": catchup.play,
    "lanes": lanes.play,
    "purge": purge.play,
    "crash": crash.play,
    "server": server.play,
    "growth": growth.play,
    "pages": pages.play,
}


def main() -> int:
    """Play the chosen proofs; returns 1 if a promise was not kept, 2 if none could be played."""
    options = _options()
    with ExitStack() as stack:
        directory = options.keep
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="prove-")))
        promises: list[Promise] = []
        try:
            directory.mkdir(parents=True, exist_ok=True)
            url = options.store or f"sqlite:///{directory.resolve()}/prove.db"
            # Use a place of its own beside the store, which is removed at the end.
            place = stack.enter_context(BenchPlace(url, SystemClock()))
            print(f"on {place.shown}", file=sys.stderr)
            for name in options.names or _PROOFS:
                promises += _prove(name, place, directory, options)
        except ShardqError as error:
            print(f"prove: {error}", file=sys.stderr)
            return 2
        except OSError as error:
            print(f"prove: {error.filename}: {error.strerror}.", file=sys.stderr)
            return 2
    if options.json:
        print(json.dumps([one.as_dict() for one in promises], indent=1))
    return int(any(one.kept is False for one in promises))


def _prove(
    name: str, place: BenchPlace, directory: Path, options: argparse.Namespace
) -> list[Promise]:
    """Play one proof, and print its outcome."""
    try:
        with Stage(place, place.url(), directory / name, long=options.long) as stage:
            promises = _PROOFS[name](stage)
    except ShardqError as error:
        promises = [Promise(name, "played to its end", str(error), kept=False)]
    for one in promises:
        print(one.line(), file=sys.stderr if options.json else sys.stdout, flush=True)
    return promises


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/prove",
        description="Show what shardq promises, judged by files that its processes write.",
        epilog="Ends with 1 where a promise was not kept, with 2 where nothing could be played.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(_PROOFS)}; all")
    parser.add_argument(
        "--store", metavar="URL", help="the store beside which to play; else a new SQLite file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON for programs")
    parser.add_argument("--long", action="store_true", help="bigger and longer")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="keep the processes' files and logs there"
    )
    options = parser.parse_args()
    for name in options.names:
        if name not in _PROOFS:
            parser.error(f"there is no proof {name!r}; there are {', '.join(_PROOFS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
