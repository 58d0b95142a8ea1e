"""`shardq queues`, run as a user runs it: settings that are more than a number."""

from __future__ import annotations

from shell import Shell, shell

from shardq.cli.exits import Exit


def test_lanes_are_left_to_the_consumers_and_fixed_by_a_number(shell: Shell) -> None:
    assert shell.ok("queues", "create", "mail").out == "mail: 8 lanes (auto), 3 bands\n"
    assert "auto (8)" in shell.ok("queues").out
    shown = shell.ok("queues", "show", "mail", "--json").lines[0]
    assert shown["settings"]["lanes"] == {"value": "auto", "default": "auto", "fixed": False}
    assert (shown["lanes_written"], shown["lanes_read"], shown["bands_used"]) == (8, 8, 1)
    told = shell.ok("queues", "show", "mail").out
    assert "consumers decide how many lanes producers fill" in told
    assert "nothing was put to priorities 1 to 2 yet, so consumers do not poll them" in told
    shell.ok("put", "mail", "x", "--priority", "1")
    assert "nothing was put to priority 2 yet" in shell.ok("queues", "show", "mail").out
    shell.ok("put", "mail", "x", "--priority", "2")
    assert "nothing was put" not in shell.ok("queues", "show", "mail").out
    for lanes, value in (("4", 4), ("auto", "auto")):
        shell.ok("queues", "alter", "mail", "--lanes", lanes)
        shown = shell.ok("queues", "show", "mail", "--json").lines[0]
        assert shown["settings"]["lanes"]["value"] == value
    for lanes in ("0", "257", "-1", "many", "4.5", ""):
        assert "lanes must be" in shell.fails(
            Exit.USAGE, "queues", "alter", "mail", f"--lanes={lanes}"
        )


def test_a_queue_is_made_with_a_key_for_each_message_or_never_has_them(shell: Shell) -> None:
    shell.ok("queues", "create", "mail", "--keyed")
    shell.ok("queues", "create", "post")
    for queue, is_keyed in (("mail", True), ("post", False)):
        shown = shell.ok("queues", "show", queue, "--json").lines[0]
        assert shown["settings"]["keyed"] == {"value": is_keyed, "default": False, "fixed": True}
    told = shell.fails(Exit.USAGE, "queues", "create", "post", "--keyed")
    assert "'post' exists with keyed no, not yes; that is fixed" in told
    assert "No such option" in shell.fails(Exit.USAGE, "queues", "alter", "post", "--keyed")


def test_limits_of_a_task_are_set_and_told_at_a_shell(shell: Shell) -> None:
    shell.ok("queues", "create", "shop")
    shell.ok("limits", "shop", "--task", "shop.*", "--rate", "10/s", "--running", "5")
    told = shell.ok("limits", "shop", "--task", "shop.a").out
    assert "shop.a: 10/s, 5 running; by the rule shop.*" in told
    shell.ok("limits", "shop", "--task", "shop.*", "--remove")
    assert "shop.a: no limits" in shell.ok("limits", "shop", "--task", "shop.a").out
