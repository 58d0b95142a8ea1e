"""The fields of a form, as a page sends them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardq.server.pages.page import NotShown

if TYPE_CHECKING:
    from collections.abc import Mapping


class Form(dict[str, str]):
    """The fields of a form, each with its last value.

    Attributes:
        every: All values of each field.
    """

    def __init__(self, fields: Mapping[str, list[str]]) -> None:
        super().__init__({name: values[-1] for name, values in fields.items()})
        self.every = fields

    def chosen(self) -> list[str]:
        """The rows of a list that are chosen.

        Raises:
            NotShown: If none is.
        """
        rows = self.every.get("id", [])
        if not rows:
            raise NotShown(400, "choose at least one line of the list.")
        return rows
