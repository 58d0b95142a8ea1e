"""`limits`: the limits of groups are listed, set, removed and explained."""

from __future__ import annotations

import re

from shell import Shell, shell

import shardq


def test_a_group_is_explained_with_what_is_due_and_runs(shell: Shell) -> None:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail", groups={"places": 2, "vip-*": {"rate": "30/h"}})
        for group in ("plain", "vip-7", "vip-8"):
            queue.put_many({"body": "x", "group": group} for _ in range(20))
        queue.put("x", group="vip-7", delay="1h")
        assert len(queue.receive(10, "1m")) == 4
        told = shell.ok("limits", "mail", "plain").out
        assert re.search(
            r"18 due, 2 running\nAll its places are taken, .* in (5\S+s|1m)\.\n$", told
        ), told
        told = shell.ok("limits", "mail", "vip-7").out
        begins = r"19 due, 1 running; the last of the due ones begins about \S+Z, in 3[89]m\S*\nAll"
        assert re.search(begins, told), told
        [told] = shell.ok("limits", "mail", "vip-7", "--json").lines
        assert (told["due"], told["running"], told["exact"]) == (19, 1, True)
        assert told["last_begins"].endswith("Z")
        queue.pause(group="vip-*")
        [told] = shell.ok("limits", "mail", "vip-7", "--json").lines
        assert (told["due"], told["last_begins"], told["paused_by"]) == (19, None, "vip-*")
        [told] = shell.ok("limits", "mail", "none", "--json").lines
        assert (told["due"], told["running"], told["last_begins"]) == (0, 0, None)
        assert told["next_begins"] is None


def test_a_group_that_a_delivery_has_limited_says_until_when(shell: Shell) -> None:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail", groups={"places": 2, "rate": "10/s", "burst": 9})
        queue.put_many({"body": "x", "group": "vip-7"} for _ in range(20))
        [message] = queue.receive(1, "1m", wait="20s")
        queue.snooze(message, "1h", limited=True)
        # It holds nothing back before it is a head.
        queue.snooze(queue.peek(20)[10], "3h", limited=True)
    told = shell.ok("limits", "mail", "vip-7").out
    begins = r"18 due, 0 running; the last of the due ones begins about \S+Z, in (1h|59m)"
    assert re.search(begins, told), told
    held = re.search(r"\nIt is held back until \S+Z, in (1h|59m\S*); `(.*)` ends that\.\n$", told)
    assert held is not None, told
    assert held[2] == "shardq queues resume mail --group vip-7"
    [told] = shell.ok("limits", "mail", "vip-7", "--json").lines
    assert told["next_begins"] < told["last_begins"]
    shell.ok("queues", "resume", "mail", "--group", "vip-7")
    assert "held back" not in shell.ok("limits", "mail", "vip-7").out


def test_the_limits_of_a_queue_and_its_tasks_are_listed_after_those_of_its_groups(
    shell: Shell,
) -> None:
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail", groups={"places": 2}, limits={"rate": "10/s", "running": 5})
        queue.limit(task="shop.*", running=3)
    out = shell.ok("limits", "mail").out
    assert out.endswith('the queue: {"rate": "10/s", "running": 5}\ntask shop.*: {"running": 3}\n')
    assert shell.ok("limits", "mail", "--json").lines[1:] == [
        {"queue": {"rate": "10/s", "running": 5}},
        {"task": "shop.*", "running": 3},
    ]


def test_a_pause_of_a_group_is_named_with_the_command_that_ends_it(shell: Shell) -> None:
    with shardq.connect(shell.url) as db:
        db.queue("mail").pause(group="vip-*")
    ended = "It is paused by vip-*: `shardq queues resume mail --group 'vip-*'`.\n"
    assert shell.ok("limits", "mail", "vip-7").out.endswith(ended)


def test_limits_are_removed_only_where_there_were_some(shell: Shell) -> None:
    with shardq.connect(shell.url) as db:
        db.queue("mail", groups={"places": 2, "vip-*": {"rate": "10/s"}})
    for groups in ("vip-*", "*"):
        told = [shell.ok("limits", "mail", groups, "--remove").out for _ in range(2)]
        assert told[0].endswith("; its own limits are removed\n")
        assert told[1].endswith("; there were no limits of its own\n")


def test_limits_and_pauses_that_a_change_of_others_removes_are_named(shell: Shell) -> None:
    tasks = {"shop.charge": {"rate": "10/s", "running": 5}, "shop.send": {"running": 2}}
    limits = {"rate": "9/s", "tasks": tasks, "paused": {"keys": ["order-7"]}}
    with shardq.connect(shell.url) as db:
        queue = db.queue("mail", groups={"places": 2, "vip-*": {"tier": 3}}, limits=limits)
        queue.pause(group="vip-7")
    given = '{"catch_up": "50/s", "tasks": {"shop.charge": {"rate": "20/s"}}}'
    assert shell.ok("queues", "alter", "mail", "--limits", given).out == (
        "mail: changed limits\nmail: removed what was there before: rate, "
        "running of task shop.charge, running of task shop.send, the pause of key order-7\n"
    )
    assert shell.ok("queues", "alter", "mail", "--groups", '{"places": 3}').out == (
        "mail: changed groups\nmail: removed what was there before: tier of group vip-*, "
        "the pause of group vip-7\n"
    )
    assert shell.ok("queues", "alter", "mail", "--groups", '{"places": 4}').out == (
        "mail: changed groups\n"
    )
