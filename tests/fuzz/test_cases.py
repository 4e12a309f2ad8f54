"""As many cases as a minute of processor time allows, and each case that ever failed.

`python -m tests.fuzz` runs many more.
"""

from __future__ import annotations

import time
from random import Random

import pytest

from tests.fuzz import profiles
from tests.fuzz.cases import make_case
from tests.fuzz.checks import check

_PARTS = 4
_PART_S = 15
_SEED = 1


@pytest.mark.parametrize("part", range(_PARTS))
def test_damaged_profiles(part: int) -> None:
    number = part
    end_s = time.process_time() + _PART_S
    while time.process_time() < end_s:
        try:
            check(make_case(_SEED, number), exports=number % 50 < _PARTS)
        except Exception as error:
            repeat = f"python -m tests.fuzz --seed {_SEED} --case {number}"
            raise AssertionError(f"repeat it with: {repeat}") from error
        number += _PARTS
    assert number > part


def test_undamaged_profiles_give_reports() -> None:
    random = Random(1)
    for _ in range(20):
        files = profiles.choose(random)
        reports = check(files)
        # Some results of tools hold no steps, which is an error for the user.
        assert reports or all(file.form in ("tool", "tool-json") for file in files)


def test_a_case_is_always_the_same() -> None:
    assert make_case(3, 14) == make_case(3, 14)
    assert len({make_case(3, number) for number in range(20)}) > 15
