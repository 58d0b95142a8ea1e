"""Serves the queues of a store by SQS and HTTP: in this process, or in several."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import closing, nullcontext
from functools import partial
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from shardq.cli import options, probes, streams, supervised
from shardq.cli.exits import Exit
from shardq.cli.probes import Probes
from shardq.errors import UsageError, shown
from shardq.tasks.line import COUNTS, ProcessLine
from shardq.tasks.processes import PROCESSES_MAX

if TYPE_CHECKING:
    import socket

    from shardq.server.site import SiteOptions

PORT = 9324
PAGES = "/pages"
_PORT_MAX = 65_535
_DEV_STORE = "sqlite://"


class Network(click.ParamType[IPv4Network | IPv6Network]):
    """A network of addresses, `10.0.0.0/8`, or one address."""

    name = "network"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> IPv4Network | IPv6Network:
        """Convert a text to the network. Called by click."""
        try:
            return ip_network(str(value), strict=False)
        except ValueError:
            self.fail(f"{shown(value)} is no network such as 10.0.0.0/8.", param, ctx)


@options.command(
    "shardq serve --dev",
    "shardq serve --store sqlite:///jobs.db",
    "shardq serve --host :: --certificate tls.crt --key tls.key --processes 2",
    has_json=False,
)
@options.option(
    "--host ADDRESS",
    "Listen on this address or name; 0.0.0.0 and :: are all addresses of the machine.",
    default="127.0.0.1",
)
@options.option(
    "--port N", "The port; 0 is any that is free.", least=0, most=_PORT_MAX, default=PORT
)
@options.option(
    "--processes N",
    "How many processes answer requests; one that dies is replaced. On SQLite one is best, on "
    "Cassandra one a core. Without it, requests are answered in this process.",
    least=1,
    most=PROCESSES_MAX,
)
@options.option("--certificate FILE", "Serve by TLS with this certificate chain, in PEM.")
@options.option("--key FILE", "The private key of the certificate, in PEM.")
@options.option(
    "--admin N",
    "Answer the admin part of the HTTP API on this port alone.",
    name="admin_port",
    least=1,
    most=_PORT_MAX,
)
@options.option(
    "--queues FILE",
    "Make the queues of this TOML file, with their attributes, before anything is served.",
    type=click.Path(path_type=Path),
)
@options.option(
    "--trust NETWORK",
    "Believe X-Forwarded-For, -Proto and -Host from proxies in this network, 10.0.0.0/8 say.",
    name="trusted",
    multiple=True,
    type=Network(),
)
@options.option(
    "--take-over",
    "Listen also where another server does. Stop that one once this listens: no connection is "
    "refused.",
)
@options.option(
    "--dev",
    "For development: print what AWS CLI and boto3 need, answer LocalStack's health path, and "
    "keep all in memory where no store is named.",
    name="is_dev",
)
@options.option("--pages-only", "Serve nothing but the pages for people, at the root.")
@options.option("--no-pages", "Serve no pages.")
@options.option("--read-only", "Let pages change nothing.", name="is_read_only")
@options.option(
    "--hide PATTERN",
    "Show no values of JSON fields and headers whose names fit, '*password*' say, on pages.",
    name="hidden",
    multiple=True,
)
@options.option(
    "--user-header NAME",
    "On pages, believe the user that proxies of --trust name in this header.",
    default="",
)
@options.option(
    "--user-levels LEVELS", "What such users may do: the levels of a key.", default="rg"
)
@options.option(
    "--insecure",
    "As long as there is no account, let everybody do everything, also from other machines: "
    "for a network that only such reach who may.",
)
@probes.metrics
def serve(
    *,
    host: str,
    port: int,
    processes: int | None,
    certificate: str | None,
    key: str | None,
    queues: Path | None,
    take_over: bool,
    no_pages: bool,
    insecure: bool,
    metrics: str | None,
    **site: Any,
) -> int:
    """Serve the queues of a store to clients of Amazon SQS, by an HTTP API under /v1, and on pages.

    The pages for people are under /pages.

    Stops on Ctrl-C and SIGTERM: requests that wait for messages get an empty answer, other requests
    are finished within 10 s. A second signal waits for none. With --processes, SIGHUP replaces the
    processes, which read the certificate anew, and refuses no connection.
    """
    from shardq.server import declared, listening, supervise

    line = ProcessLine.inherited()
    declared_queues = {} if queues is None else declared.read(queues)
    supervise.check_certificate(certificate, key)
    chosen = _site(site, no_pages=no_pages)
    store = _store(is_dev=chosen.is_dev)
    sockets = listening.inherited()

    def listen(count: int) -> list[list[socket.socket]]:
        if sockets:
            return [sockets] * count
        return _listening(host, port, chosen.admin_port, count, take_over=take_over)

    probed = Probes(metrics, None) if line is None else None
    if probed is not None and processes is not None:
        if store == _DEV_STORE:
            raise UsageError("processes share no memory; name a file by --store to have several.")
        return supervised.supervise(
            probed,
            processes=processes,
            deadline_s=supervise.DEADLINE_S,
            sockets=listen(processes),
            is_counting=metrics is not None,
        )
    with supervised.reported(line), closing(probed) if probed else nullcontext():
        [sockets] = listen(1)
        scheme = "https" if certificate else "http"
        try:
            _serve(
                store,
                sockets,
                line,
                chosen,
                queues=declared_queues,
                urls=[listening.url_of(one, scheme) for one in sockets],
                certificate=certificate,
                key=key,
                insecure=insecure,
                probed=probed,
                has_metrics=metrics is not None,
            )
        finally:
            for one in sockets:
                one.close()
    return Exit.OK


def _site(given: dict[str, Any], *, no_pages: bool) -> SiteOptions:
    """The site's options, from the options of the command.

    Raises:
        UsageError: If they exclude one another.
    """
    from shardq.server import grants
    from shardq.server.site import SiteOptions

    pages: str | None = PAGES
    if given["pages_only"]:
        if no_pages:
            raise UsageError("--pages-only and --no-pages exclude each other; leave one out.")
        pages = ""
    elif no_pages:
        pages = None
    if given["user_header"] and not given["trusted"]:
        raise UsageError("--user-header needs --trust: name the proxies that are believed.")
    levels = grants.levels_of(given["user_levels"])
    return SiteOptions(**given | {"pages": pages, "user_levels": levels})


def _store(*, is_dev: bool) -> str:
    if is_dev and not options.given_url() and not os.environ.get(options.STORE_VARIABLE):
        return _DEV_STORE
    return options.store_url()


def _listening(
    host: str, port: int, admin: int | None, count: int, *, take_over: bool
) -> list[list[socket.socket]]:
    """The sockets of each process."""
    from shardq.server import listening

    made = []
    for number in range(count):
        shared = take_over or number > 0
        sockets = listening.bound(host, port, shared=shared)
        port = port or sockets[0].getsockname()[1]
        if admin is not None:
            sockets += listening.bound(host, admin, shared=shared)
        made.append(sockets)
    return made


def _serve(
    store: str,
    sockets: list[socket.socket],
    line: ProcessLine | None,
    chosen: SiteOptions,
    *,
    queues: dict[str, dict[str, Any]],
    urls: list[str],
    certificate: str | None,
    key: str | None,
    insecure: bool,
    probed: Probes | None,
    has_metrics: bool,
) -> None:
    """Serve in this process until a signal or the supervisor ends it."""
    from shardq.server import declared, supervise
    from shardq.server.access import Access
    from shardq.server.app import Application
    from shardq.server.vitals import Serving

    hosts = list(dict.fromkeys(one.getsockname()[0] for one in sockets))
    with options.connect(store, makes=True) as db:
        access = Access.starting(db, hosts, insecure=insecure)
        warning = access.warning
        who = "" if line is None else f"process {os.getpid()} "

        def tell() -> None:
            if warning:
                streams.note(warning)
            streams.note(f"{who}serves {db.url_shown} at {' and '.join(dict.fromkeys(urls))}.")
            if probed is not None:
                probed.begin(vitals, probes.of_one(db))
            if line is not None:
                line.ready()
            elif chosen.is_dev and warning:
                _print_exports(urls[0], chosen)

        asyncio.run(declared.make(db, chosen, queues))
        server = supervise.Server(
            Application(db, chosen, access), certificate=certificate, key=key, on_listening=tell
        )
        vitals = partial(Serving, db, server)
        if line is not None:
            probes.answer(line, vitals, db, has_metrics=has_metrics)
            line.on_lost(server.stop, supervise.DEADLINE_S)
        supervise.run(server, sockets)
        if line is not None:
            # Send the last counts, of the time since the last question.
            line.answer(COUNTS)


def _print_exports(url: str, chosen: SiteOptions) -> None:
    """Print the variables that AWS CLI and boto3 need, for a shell."""
    click.echo(f"export AWS_ENDPOINT_URL_SQS={url}")
    click.echo("export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test")
    click.echo(f"export AWS_DEFAULT_REGION={chosen.region}")
    # Define a function, because version 1 of AWS CLI does not read the url from its environment.
    click.echo(f'sqs() {{ aws --endpoint-url {url} sqs "$@"; }}')
    sys.stdout.flush()
