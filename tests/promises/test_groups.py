"""Tests of a group run in one process, so that what they share is made once."""

from __future__ import annotations

import pytest

RAN: list[int] = []


@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(6))
def test_one_process_runs_the_tests_of_a_group(number: int) -> None:
    RAN.append(number)
    assert list(range(number + 1)) == RAN, (
        "pytest and pytest-xdist of these versions make no groups"
    )
