"""A promise, the numbers that show how it was kept, and whether it was."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_PROOF_CHARS = 8
_NAME_CHARS = 34


@dataclass(frozen=True, slots=True)
class Promise:
    """One line of the outcome.

    Attributes:
        proof: The proof that it belongs to.
        name: What is promised.
        numbers: What was counted or measured.
        kept: Whether it held; None where the numbers are for information.
    """

    proof: str
    name: str
    numbers: str
    kept: bool | None = None

    def line(self) -> str:
        """The line for people."""
        verdict = {True: "ok", False: "NOT OK", None: "-"}[self.kept]
        return (
            f"{self.proof:<{_PROOF_CHARS}} {self.name:<{_NAME_CHARS}} {verdict:<6} {self.numbers}"
        )

    def as_dict(self) -> dict[str, Any]:
        """The line for programs."""
        return asdict(self)
