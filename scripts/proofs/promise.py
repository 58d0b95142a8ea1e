"""A promise, the numbers that show how well it was kept, and the judgement."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

_PROOF_CHARS = 8
_NAME_CHARS = 34


@dataclass(frozen=True, slots=True)
class Promise:
    """A line of the outcome.

    Attributes:
        proof: The name of the proof that tests the promise.
        name: The promise.
        numbers: The counted or measured figures.
        kept: True if the promise was kept; None if the numbers are only for information.
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
