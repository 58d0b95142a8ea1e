"""A real Cassandra on this machine, without Docker."""

from __future__ import annotations

from pathlib import Path

import click

from shardq import node as local
from shardq.cli import listing, options, screen, streams
from shardq.cli.exits import Exit

_directory = options.option(
    "--directory DIR",
    "Where its data and state are kept. Where not given, a directory of each user's own.",
    type=click.Path(file_okay=False, path_type=Path),
)


@click.group(
    cls=options.CommandGroup,
    epilog=options.examples(
        "shardq node start", "export SHARDQ_STORE=$(shardq node status --url)", "shardq node stop"
    ),
)
def node() -> None:
    """Run a genuine Apache Cassandra 5.0 on this machine, without Docker.

    It listens on loopback alone, and is for development, tests and benchmarks.
    """


@options.command("shardq node start --nodes 3", of=node, has_store=False, has_json=False)
@options.option("--nodes N", "Nodes of the cluster.", least=1, most=5, default=1)
@_directory
def start(nodes: int, directory: Path | None) -> None:
    """Start Cassandra, wait until it answers, and print its url.

    The first start fetches Cassandra's jars, for some minutes.
    """
    there = local.start(nodes, directory, report=lambda text: click.echo(text, err=True))
    if not there.started:
        streams.note(
            f"{screen.plural(len(there.nodes), 'node')} ran already; `shardq node stop` ends it."
        )
    click.echo(there.url)


@options.command("shardq node stop --remove", of=node, has_store=False, has_json=False)
@options.option("--remove", "Remove its data too.")
@_directory
def stop(directory: Path | None, *, remove: bool) -> None:
    """Stop Cassandra. Its data stays for the next start."""
    ended = local.stop(directory, remove=remove)
    click.echo(f"stopped {screen.plural(len(ended), 'node')}")


@options.command("shardq node status", of=node, has_store=False, has_json=False)
@options.option("--url", "Print the store's url alone.", name="url_only")
@_directory
def status(directory: Path | None, *, url_only: bool) -> Exit:
    """Show which of the nodes answer, and the url. Ends with 15 where none runs."""
    there = local.status(directory)
    if there is None or not there.running:
        streams.note("no node runs here; start one with: shardq node start")
        return Exit.NODE
    if url_only:
        click.echo(there.cluster.url)
        return Exit.OK
    rows = [
        {
            "node": str(one.node.number),
            "address": f"{one.node.address}:{there.cluster.port}",
            ">pid": str(one.node.pid or ""),
            "state": one.state,
        }
        for one in there.nodes
    ]
    listing.show(rows, free=0)
    click.echo(there.cluster.url)
    return Exit.OK
