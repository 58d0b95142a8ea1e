"""Puts under keys at a shell."""

from __future__ import annotations

import json

from shell import Shell, shell

from shardq import connect
from shardq.cli.exits import Exit


def test_a_put_under_a_key_prints_the_message_that_has_it(shell: Shell) -> None:
    put = ("put", "mail", "a", "--delay", "1h", "--key", "order-7")
    first = shell.ok(*put).out.strip()
    [again] = shell.ok(*put, "--json").lines
    assert (again["id"], again["key"]) == (first, "order-7")
    replaced = shell.ok("put", "mail", "b", "--key", "order-7", "--on-conflict", "replace")
    assert replaced.out.strip() == first
    refused = shell.run("put", "mail", "c", "--key", "order-7", "--on-conflict", "reject")
    assert refused.code == Exit.KEY_TAKEN
    assert f"is taken by message {first}" in refused.err


def test_options_of_keys_that_contradict_are_wrong_usage(shell: Shell) -> None:
    for given in (["--on-conflict", "replace"], ["--key", "k", "--max-wait", "1h"], ["--key", ""]):
        refused = shell.run("put", "mail", "a", *given)
        assert refused.code == Exit.USAGE, given
        assert len(refused.err.splitlines()) == 1


def test_a_file_is_replayed_again_under_its_keys_without_a_second_message(
    shell: Shell,
) -> None:
    lines = [json.dumps({"at": "2027-01-01T00:00:00Z", "order": n}) for n in (1, 2, 3, "2")]
    trace = shell.directory / "orders.jsonl"
    trace.write_text("\n".join(lines))
    produce = ("produce", "mail", "--from", str(trace), "--start", "2099-01-01T00:00:00Z",
               "--key-field", "order")  # fmt: skip
    told = shell.ok(*produce).out
    assert told == "put 3 messages into mail; 1 line not put, since its key is taken\n"
    told = shell.ok(*produce).out
    assert told == "put 0 messages into mail; 4 lines not put, since their keys are taken\n"
    [told] = shell.ok(*produce, "--json").lines
    assert (told["put"], told["kept"]) == (0, 4)


def test_a_line_whose_key_is_held_is_passed_over(shell: Shell) -> None:
    with connect(shell.url) as db:
        queue = db.queue("mail")
        queue.put("first", key="2", unique_for="1h")
        queue.ack(*queue.receive())
    trace = shell.directory / "orders.jsonl"
    lines = [{"at": "2027-01-01T00:00:00Z", "order": n} for n in (1, 2, 3)]
    trace.write_text("\n".join(map(json.dumps, lines)))
    done = shell.ok("produce", "mail", "--from", str(trace), "--key-field", "order")
    assert done.out == "put 2 messages into mail; 1 line not put, since its key is taken\n"
    assert [
        json.loads(line["body"])["order"] for line in shell.ok("peek", "mail", "--json").lines
    ] == [1, 3]


def test_a_line_without_a_key_is_named(shell: Shell) -> None:
    for line, text in (
        ({"at": "2027-01-01T00:00:00Z"}, "line 1 has no field 'order'"),
        ({"at": "2027-01-01T00:00:00Z", "order": [1]}, "no text or whole number in field"),
        ({"at": "2027-01-01T00:00:00Z", "order": None}, "no text or whole number in field 'order'"),
        ({"at": "2027-01-01T00:00:00Z", "order": "a\nb"}, "line 1: key 'a\\nb' must be"),
    ):
        trace = shell.directory / "orders.jsonl"
        trace.write_text(json.dumps(line))
        refused = shell.run("produce", "mail", "--from", str(trace), "--key-field", "order")
        assert refused.code == Exit.USAGE
        assert text in refused.err
    refused = shell.run("produce", "mail", "--rate", "1", "--key-field", "order")
    assert "--key-field goes with --from alone" in refused.err
