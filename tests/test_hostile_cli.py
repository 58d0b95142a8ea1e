"""Hostile arguments, environment and files: a known exit code and one line, never a traceback."""

from __future__ import annotations

import gzip
import io
import json
import logging
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from examples import bounded
from hostile import INJECTIONS, refusals
from hypothesis import given
from hypothesis import strategies as st

from shardq import cli
from shardq.cli import options, trace
from shardq.cli.exits import Exit
from shardq.clock import CORRECTION_VARIABLE, OFFSET_VARIABLE
from shardq.errors import BadUrl
from shardq.stores.cassandra.address import read_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "hunter2"
LOGINS = ["", f"me:{SECRET}@", f"me:{SECRET}/x@", f"me:a?{SECRET}@"]


class Ended(NamedTuple):
    code: int
    out: str
    err: str


class Terminal:
    """Runs commands in this process, in a directory of its own, against one file."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.url = f"sqlite:///{directory}/jobs.db?synchronous=normal"
        self.empty_url = f"sqlite:///{directory}/empty.db?synchronous=normal"
        self._patch = patch

    def run(
        self, *arguments: str, stdin: bytes = b"", encoding: str = "utf-8", **environment: str
    ) -> Ended:
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding, newline="\n") for _ in range(2))
        with self._patch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            patch.setattr(sys, "stdout", out)
            patch.setattr(sys, "stderr", err)
            for name, value in {options.STORE_VARIABLE: self.url, **environment}.items():
                patch.setenv(name, value)
            try:
                code = cli.run(list(arguments))
            except SystemExit as ended:
                code = int(ended.code or 0)
        return Ended(code, _text(out), _text(err))


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(stream.encoding, "replace")


@pytest.fixture
def terminal(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Terminal]:
    for name in (OFFSET_VARIABLE, CORRECTION_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    directory = tmp_path_factory.mktemp("hostile")
    monkeypatch.chdir(directory)
    loggers = [logging.getLogger(name) for name in ("shardq", "cassandra")]
    kept = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield Terminal(directory, monkeypatch)
    for logger, level, handlers in kept:
        logger.setLevel(level)
        logger.handlers[:] = handlers


def check(ended: Ended) -> None:
    """True if a command ended as the help says it may."""
    assert ended.code in set(Exit), ended
    assert "Traceback" not in ended.err
    assert SECRET not in ended.out + ended.err
    if ended.code not in {Exit.OK, Exit.FAILED, Exit.RECEIPT_STALE}:
        assert ended.err.startswith("shardq: "), ended
        assert ended.err.count("\n") == 1, ended
        assert ended.err.rstrip("\n").isprintable(), ended


# A command line is bytes without a zero, whatever is in them.
words = st.one_of(
    st.sampled_from([name for name in INJECTIONS if "\0" not in name and name != "\ud800"]),
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
    st.binary(max_size=12).map(lambda raw: os.fsdecode(raw.replace(b"\0", b""))),
    st.integers().map(str),
    st.sampled_from(["9" * 5_000, "1e308", "nan", "-1", "1s", "-", "--", "-h", "mail", "1/2"]),
)
COMMANDS: dict[tuple[str, ...], list[str]] = {
    ("put",): ["--due", "--delay", "--priority", "--group", "--header", "--id", "--json"],
    ("peek",): ["-n", "--json"],
    ("cancel",): [],
    ("dead",): ["-n", "--json", "--redrive", "--purge", "--yes"],
    ("queues",): ["--json"],
    ("queues", "create"): ["--minute", "--bands", "--lanes", "--offset", "--attempts", "--hold"],
    ("queues", "alter"): ["--lanes", "--backoff", "--backoff-max", "--visibility", "--history"],
    ("queues", "pause"): [],
    ("queues", "purge"): ["--yes"],
    ("produce",): ["--from", "--due-field", "--speed", "--start", "--limit", "--part", "--lead"],
    ("schema",): [],
    ("check",): ["--all", "--json"],
    ("audit",): ["--since", "--until", "--minutes", "--dead", "--json"],
    ("history",): ["--since", "--until", "--json"],
    ("consume", "--until-empty"): [
        "--threads",
        "--prefetch",
        "--isolated",
        "--deadline",
        "--exec",
        "--json",
    ],
    ("init",): [],
    ("observe", "--once"): ["--horizon", "--every", "--json"],
    ("node", "status"): ["--url"],
}


@bounded(150)
@given(
    command=st.sampled_from(sorted(COMMANDS)),
    data=st.data(),
    stdin=st.binary(max_size=20),
    encoding=st.sampled_from(["utf-8", "utf-8", "ascii", "latin-1"]),
)
def test_any_command_line_ends_with_a_known_code_and_one_line(
    terminal: Terminal,
    command: tuple[str, ...],
    data: st.DataObject,
    stdin: bytes,
    encoding: str,
) -> None:
    arguments = data.draw(st.lists(st.one_of(st.just("mail"), words), max_size=2))
    for option in data.draw(st.lists(st.sampled_from([*COMMANDS[command], "--bogus"]), max_size=3)):
        arguments += [option, data.draw(words)] if data.draw(st.booleans()) else [option]
    # Whatever it says of where nodes are kept, none of this machine's is looked at.
    more = ["--directory", "none"] if command[0] == "node" else []
    # Otherwise `consume` would wait for messages that others have put for next year.
    own = {"SHARDQ_STORE": terminal.empty_url} if command[0] == "consume" else {}
    check(terminal.run(*command, *arguments, *more, stdin=stdin, encoding=encoding, **own))


@bounded(60)
@given(url=st.data())
def test_any_store_url_is_opened_or_refused_in_one_line(
    terminal: Terminal, url: st.DataObject
) -> None:
    text = url.draw(urls())
    for where in ("--store", "SHARDQ_STORE"):
        if where == "--store":
            ended = terminal.run("queues", "--store", text)
        else:
            ended = terminal.run("queues", SHARDQ_STORE=text)
        check(ended)


@st.composite
def urls(draw: st.DrawFn) -> str:
    """Store urls that connect to no host: of files, and such as cannot be used."""
    login = draw(st.sampled_from([*LOGINS, f"{SECRET}@", f":{SECRET}@"]))
    scheme = draw(st.sampled_from(["sqlite://", "sqlite:", "casandra://", "SQLITE://", "", "//"]))
    place = draw(st.sampled_from(["/", "", "/a/b/", "/%00", "/%zz", "//x", "/" + "a" * 300, "/."]))
    name = draw(words)
    query = draw(
        st.sampled_from(["", "?busy=1s", "?busy=99999d", f"?password={SECRET}", "?x", "#x", "?"])
    )
    return f"{scheme}{login}{place}{name}{query}"


@bounded(200)
@given(url=st.data())
def test_any_cassandra_url_is_read_or_refused_in_a_sentence_without_its_password(
    url: st.DataObject,
) -> None:
    login = url.draw(st.sampled_from(LOGINS))
    text = f"cassandra://{login}" + url.draw(
        st.one_of(
            words,
            st.lists(
                st.sampled_from(
                    [
                        *(
                            "me",
                            # With its @: without, it is no password but a part of what is named.
                            f":{SECRET}@",
                            "@",
                            "host1",
                            ",host2",
                            ":9042",
                            ":99999",
                            ":x",
                            "[::1]",
                        ),
                        *(
                            "/",
                            "keyspace",
                            "/Key",
                            "?",
                            "timeout=2s",
                            "&",
                            "dc=",
                            "consistency=all",
                        ),
                        *("%00", "%zz", "#", "é", "[", "replication=", "a" * 300),
                    ]
                ),
                max_size=8,
            ).map("".join),
        )
    )
    try:
        shown = repr(read_url(text))
    except BadUrl as error:
        shown = str(error)
    assert SECRET not in shown
    assert "\n" not in shown


@pytest.mark.parametrize("rest", ["", "/keyspace", ",host2/keyspace", "?timeout=2s"])
def test_a_password_whose_host_is_forgotten_is_not_shown_as_a_port(rest: str) -> None:
    with pytest.raises(BadUrl) as refusal:
        read_url(f"cassandra://me:{SECRET}{rest}")
    assert SECRET not in str(refusal.value)


@bounded(40)
@given(
    offset=st.one_of(words, st.floats().map(str), st.sampled_from(["1e300", "-1e9", "3600"])),
    correction=st.one_of(st.just("off"), words),
)
def test_any_clock_offset_is_taken_or_refused_in_one_line(
    terminal: Terminal, offset: str, correction: str
) -> None:
    environment = {OFFSET_VARIABLE: offset, CORRECTION_VARIABLE: correction}
    check(terminal.run("put", "mail", "x", **environment))
    check(terminal.run("check", **environment))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--from", "trace.jsonl", "--speed", "1e-300"],
        ["--from", "trace.jsonl", "--speed", "1e-9"],
        ["--from", "trace.jsonl", "--limit", "9" * 30],
        ["--from", "trace.jsonl", "--part", "1/" + "9" * 30],
        ["--from", "trace.jsonl", "--part", "1/" + "9" * 5_000],
        ["--from", "trace.jsonl", "--start", "9999-12-31T23:59:59Z"],
        ["--rate", "1e308", "--count", "2"],
    ],
)
def test_numbers_beyond_all_bounds_are_wrong_usage(
    terminal: Terminal, arguments: list[str]
) -> None:
    lines = ['{"at": "2027-01-01T00:00:00Z"}', '{"at": "2028-01-01T00:00:00Z"}']
    (terminal.directory / "trace.jsonl").write_text("\n".join(lines))
    ended = terminal.run("produce", "mail", *arguments)
    check(ended)
    assert ended.code == Exit.USAGE


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp1252"])
def test_json_is_json_whatever_the_terminal_can_show(terminal: Terminal, encoding: str) -> None:
    shown = "żółw \U0001f422"
    arguments = ["--header", f"name={os.fsdecode(b'caf' + bytes([0xE9]))}", "--id", shown]
    assert terminal.run("put", "mail", shown, *arguments, encoding=encoding).code == 0
    for command in (["peek"], ["peek", "--json"]):
        ended = terminal.run(*command, "mail", encoding=encoding)
        check(ended)
        assert ended.code == 0
    [line] = map(json.loads, ended.out.splitlines())
    assert (line["id"], line["body"], line["headers"]) == (shown, shown, {"name": "caf\udce9"})


# Traces -------------------------------------------------------------------------------------------

values: Any = st.recursive(
    st.one_of(
        st.sampled_from(["2027-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1969-01-01T00:00Z"]),
        st.none(),
        st.floats(),
        st.integers(),
        st.text(max_size=10),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("ab"), inner, max_size=2)
    ),
    max_leaves=4,
)
lines = st.one_of(
    st.dictionaries(st.sampled_from(["at", "at ", "x"]), values, max_size=3).map(
        lambda line: json.dumps(line).encode()
    ),
    values.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=30),
    st.sampled_from(
        [
            b'{"at": NaN}',
            b'{"at": Infinity}',
            b'{"at": ' + b"9" * 5_000 + b"}",
            b'{"at": "2027-01-01T00:00Z", "at": 5}',
            b'{"at": "2027-01-01T00:00:00Z"}',
            b'{"at": "2027-01-01T00:00:00"}',
            b'{"at": "\\ud800"}',
            b'\xef\xbb\xbf{"at": "2027-01-01T00:00:00Z"}',
            b"\0",
            b'{"at":' + b"[" * 100_000,
        ]
    ),
)


@bounded(80)
@given(given=st.lists(lines, max_size=4), data=st.data())
def test_any_trace_is_read_or_refused_in_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, given: list[bytes], data: st.DataObject
) -> None:
    plain = data.draw(st.sampled_from([b"\n", b"\r\n", b""])).join(given)
    packed = bytearray(gzip.compress(plain))
    is_bent = data.draw(st.booleans())
    if is_bent:
        packed[data.draw(st.integers(0, len(packed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = packed[: data.draw(st.integers(0, len(packed)))]
    directory = tmp_path_factory.mktemp("trace")
    files = {"a.jsonl": plain, "b.jsonl.gz": bytes(packed), "c.gz": bytes(cut), "d.gz": plain}
    for name, content in files.items():
        path = directory / name
        path.write_bytes(content)
        strange, refused = False, True
        with refusals():
            for timed in trace.replay(trace.read(path, "at"), start_ms=0, speed=1.0):
                strange |= timed.body not in plain
                assert timed.due_ms >= 0
            refused = False
        # A changed line of a gzip file is refused once the checksum at the file's end is read.
        assert not strange or (refused and is_bent and name in {"b.jsonl.gz", "c.gz"})
