"""What `docs/server.md` says of options, limits and files is so."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from pathlib import Path

from shardq.cli.serve import serve
from shardq.server import app, client, declared, site, supervise, wire
from shardq.tasks import line

PAGE = (Path(__file__).parent.parent / "docs" / "server.md").read_text()
FILES: dict[str, str] = dict(
    re.findall(r'^```\w+ title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL)
)


def test_the_page_has_every_option() -> None:
    table = PAGE.partition("\n## Options\n")[2].partition("\n\n**")[0]
    told = set(re.findall(r"`(--[\w-]+)`", table))
    assert told == {one.opts[0] for one in serve.params}


def test_the_page_has_the_limits_as_they_are() -> None:
    limits = PAGE.partition("\n## Limits\n")[2].partition("\n## ")[0]
    for told in (
        f"{client.BODY_BYTES_MAX >> 20} MiB",
        f"{app.HEADER_BYTES_MAX >> 10} KiB",
        f"{wire.HEAD_S_MAX:.0f} s, then the connection",
        f"{client.BODY_S_MAX:.0f} s, then 408",
        f"{supervise.CONNECTIONS_MAX:,} a process",
        f"{site.POLLS_MAX:,} a process",
        f"after {wire.KEPT_ALIVE_S} s",
    ):
        assert told in limits, told


def test_the_files_of_the_page_start_a_server_with_options_that_there_are() -> None:
    unit = configparser.ConfigParser(strict=False)
    unit.read_string(FILES["shardq-server.service"])
    name, command, *words = shlex.split(unit["Service"]["ExecStart"])
    assert (Path(name).name, command) == ("shardq", "serve")
    serve.make_context("serve", words)
    assert float(unit["Service"]["TimeoutStopSec"]) > supervise.DEADLINE_S + line.MARGIN_S
    entry = re.search(r"^ENTRYPOINT (.*)$", FILES["Dockerfile"], re.MULTILINE)
    assert entry is not None
    _, _, *words = json.loads(entry[1])
    serve.make_context("serve", words)


def test_the_file_of_queues_is_one(tmp_path: Path) -> None:
    path = tmp_path / "queues.toml"
    path.write_text(FILES[path.name])
    assert list(declared.read(path)) == ["orders", "payments.fifo", "lost", "mail"]
