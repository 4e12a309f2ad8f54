"""A hundred cases, and some more at night. `python -m tests.fuzz` runs many more."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.cases import check, format_of, make_case
from tests.fuzz.formats import FORMATS
from tests.support.night import IS_NIGHT

_CASES = 400 if IS_NIGHT else 120
_PARTS = 4
_SEED = 1


@pytest.mark.parametrize("part", range(_PARTS))
def test_damaged_files(part: int) -> None:
    for number in range(part, _CASES, _PARTS):
        chosen = format_of(number)
        try:
            check(chosen, make_case(chosen, _SEED, number), exports=number % 50 < _PARTS)
        except Exception as error:
            repeat = f"python -m tests.fuzz --format {chosen.name} --seed {_SEED} --case {number}"
            raise AssertionError(f"repeat it with: {repeat}") from error


@pytest.mark.parametrize("name", FORMATS)
def test_undamaged_files_give_results(name: str) -> None:
    chosen, random = FORMATS[name], Random(1)
    numbers = range(10 if IS_NIGHT else 2)
    results = [check(chosen, chosen.choose(random), exports=at == 0) for at in numbers]
    assert all(results) if chosen.always_has_results else any(results)


@pytest.mark.parametrize("name", FORMATS)
def test_a_case_is_always_the_same(name: str) -> None:
    chosen = FORMATS[name]
    assert make_case(chosen, 3, 14) == make_case(chosen, 3, 14)
    assert len({make_case(chosen, 3, number) for number in range(10)}) > 7


def test_every_format_gets_its_turn() -> None:
    assert {format_of(number).name for number in range(100)} == set(FORMATS)
