"""Lists of messages in terminals of several widths."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from rich.text import Text

from shardq.cli.listing import lines

HEADS = ["died", ">attempts", "id", "reason", "body"]


def row(name: str, reason: str = "timeout", body: str = "hello") -> list[Text]:
    return [Text("2027-01-01T09:00:00Z"), Text("5"), Text(name), Text(reason), Text(body)]


def drawn(rows: list[list[Text]], width: int) -> list[str]:
    return [line.plain for line in lines(HEADS, rows, free=2, width=width)]


@pytest.mark.parametrize("width", [40, 80, 140])
def test_an_id_is_whole_in_one_line_and_the_rest_fits(width: int) -> None:
    names = ["order-7", "🎉-order-ü", "order-of-somebody-" * 4]
    found = drawn([row(name, "because " * 40, "x" * 300) for name in names], width)
    for name in names:
        assert sum(name in line for line in found) == 1
    assert all(cell_len(line) <= max(width, 130) for line in found)


def test_what_fits_is_one_line_each() -> None:
    assert drawn([row("order-7"), row("order-10")], 80) == [
        "died                  attempts  id        reason   body",
        "2027-01-01T09:00:00Z         5  order-7   timeout  hello",
        "2027-01-01T09:00:00Z         5  order-10  timeout  hello",
    ]


def test_texts_go_below_where_ids_leave_no_room() -> None:
    found = drawn([row("order-" * 8, "because " * 9)], 80)
    assert len(found) == 4
    assert found[3].startswith("    because because")
    assert "hello" in found[3]
    assert cell_len(found[3]) <= 80
