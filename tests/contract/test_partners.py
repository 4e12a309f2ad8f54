"""Which captures are suggested for a comparison."""

from __future__ import annotations

import pytest

from tb_perfadvisor.contract.partners import (
    Recorded,
    nearby_captures,
    nearest_partner,
    suggest_partners,
)
from tb_perfadvisor.ingest.captures import Capture


def capture(run: str, session: str = "", format: str = "kineto") -> Capture:
    return Capture(f"{run} {session}".strip(), run, session, format, files=())


def suggested(*captures: Capture) -> dict[str, list[tuple[str, str]]]:
    """Base and target of each partner, by capture."""
    return {
        name: [(partner.base, partner.target) for partner in partners]
        for name, partners in suggest_partners(captures).items()
    }


@pytest.mark.parametrize(
    ("base", "target"),
    [
        ("input_slow", "input_fixed"),
        ("input", "input_fixed"),
        ("input_before", "input"),
        ("slow/train", "fixed/train"),
        ("resnet-baseline", "resnet-optimized"),
        ("lm_1gpu", "lm_8gpu"),
        ("lm_ranks2_slow", "lm_ranks4_slow"),
    ],
)
@pytest.mark.parametrize("is_reversed", [False, True])
def test_names_that_differ_in_one_word(base: str, target: str, is_reversed: bool) -> None:
    captures = [capture(base), capture(target)]
    found = suggested(*(reversed(captures) if is_reversed else captures))
    assert found == {base: [(base, target)], target: [(base, target)]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("input_slow", "memory_fixed"),
        ("input_slow", "input_old"),  # both are before a change
        ("resnet18", "resnet50"),  # a number, but not of devices
        ("input", "output"),
        ("lm_1gpu_slow", "lm_8gpu_fixed"),  # two differences
    ],
)
def test_other_names_are_not_suggested(one: str, other: str) -> None:
    assert suggested(capture(one), capture(other)) == {}


def test_other_formats_are_not_suggested() -> None:
    assert suggested(capture("a_slow"), capture("a_fixed", format="xplane")) == {}


def test_recordings_of_a_run_are_compared_with_the_previous_one() -> None:
    first, second, third = (capture("run", f"2026_01_0{day}_00_00_00") for day in (1, 2, 3))
    assert suggested(third, first, second) == {
        first.id: [(first.id, second.id)],
        second.id: [(first.id, second.id), (second.id, third.id)],
        third.id: [(second.id, third.id)],
    }


def test_latest_recording_stands_for_another_run() -> None:
    old, new = (capture("a_slow", f"2026_01_0{day}_00_00_00") for day in (1, 2))
    fixed = capture("a_fixed", "2026_01_03_00_00_00")
    found = suggested(old, new, fixed)
    assert found[fixed.id] == [(new.id, fixed.id)]
    assert (old.id, fixed.id) in found[old.id]


def test_partners_say_what_they_are() -> None:
    found = suggest_partners([capture("a_slow"), capture("a_fixed")])
    (partner,) = found["a_slow"]
    assert (partner.id, partner.reason) == ("a_fixed", "the run after")
    (partner,) = found["a_fixed"]
    assert (partner.id, partner.reason) == ("a_slow", "the run before")


def test_number_of_partners_is_bounded() -> None:
    captures = [
        capture("a"),
        *(capture(f"a_{word}") for word in ["new", "fast", "tuned", "after", "opt"]),
    ]
    assert len(suggested(*captures)["a"]) == 4


def recorded(id: str, minute: int, folder: str = "lm") -> Recorded:
    return Recorded(id, folder, f"2026_01_01_00_{minute:02}_00")


def nearest(*captures: Recorded, **programs: str | None) -> dict[str, tuple[str, str]]:
    """Base and target of the nearest partner, by capture; the usual program is `train.py`."""
    found = {
        id: nearest_partner(id, nearby, lambda id: programs.get(id, "train.py"))
        for id, nearby in nearby_captures(captures).items()
    }
    return {id: (each.base, each.target) for id, each in found.items() if each is not None}


def test_the_nearest_run_is_the_one_before_or_else_after() -> None:
    found = nearest(recorded("c", 3), recorded("a", 1), recorded("b", 2))
    assert found == {"a": ("a", "b"), "b": ("a", "b"), "c": ("b", "c")}


def test_other_programs_and_folders_are_passed_over() -> None:
    found = nearest(
        recorded("a", 1),
        recorded("other", 2),
        recorded("b", 3),
        recorded("far", 2, folder="x"),
        other="serve.py",
    )
    assert found == {"a": ("a", "b"), "b": ("a", "b")}


def test_what_is_not_analyzed_yet_may_be_the_same() -> None:
    pair = {"a": ("a", "b"), "b": ("a", "b")}
    assert nearest(recorded("a", 1), recorded("b", 2), a=None) == pair
    assert nearest(recorded("a", 1), recorded("b", 2), b=None) == pair
