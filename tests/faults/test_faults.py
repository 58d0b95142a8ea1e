"""Whatever fault is played, nothing is lost, early, or repeated without a cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from faults.faults import FAULTS, Fault

if TYPE_CHECKING:
    from faults.programme import Programme


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(one, id=one.name, marks=[pytest.mark.root] if one.needs_root else [])
        for one in FAULTS
    ],
)
def test_all_is_delivered_with(fault: Fault, programme: Programme) -> None:
    programme.wait_for(fault)
