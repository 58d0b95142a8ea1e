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
        assert "18 due, 2 running\n" in told
        told = shell.ok("limits", "mail", "vip-7").out
        begins = r"19 due, 1 running; the last of the due ones begins about \S+Z, in 38m\n"
        assert re.search(begins, told), told
        [told] = shell.ok("limits", "mail", "vip-7", "--json").lines
        assert (told["due"], told["running"], told["exact"]) == (19, 1, True)
        assert told["last_begins"].endswith("Z")
        queue.pause(group="vip-*")
        [told] = shell.ok("limits", "mail", "vip-7", "--json").lines
        assert (told["due"], told["last_begins"], told["paused_by"]) == (19, None, "vip-*")
        [told] = shell.ok("limits", "mail", "none", "--json").lines
        assert (told["due"], told["running"], told["last_begins"]) == (0, 0, None)


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
