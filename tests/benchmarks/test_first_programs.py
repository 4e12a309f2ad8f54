"""The first try on whole programs: the frozen list, made-up data, rates."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest

from first_programs import data
from first_programs.page import pooled, section
from first_programs.recipes import (
    FOLDER,
    Program,
    Truth,
    Verdict,
    judged_before,
    programs,
    recipes,
)


def test_the_list_names_what_it_needs() -> None:
    listed = recipes("gpu")
    assert len({recipe.name for recipe in listed}) == len(listed) >= 20
    known = {recipe.name for recipe in listed}
    assert known == {program.name for program in programs("gpu")}


def test_the_list_of_proofs_names_what_it_needs() -> None:
    listed = recipes("tried/programs")
    assert len({recipe.name for recipe in listed}) == len(listed) >= 12
    assert {name for recipe in listed for name in recipe.data} <= set(data.GENERATORS)


def test_made_up_images_have_the_format_of_the_real_ones(tmp_path: Path) -> None:
    data.mnist(tmp_path)
    content = (tmp_path / "MNIST" / "raw" / "train-images-idx3-ubyte").read_bytes()
    magic, count, height, width = struct.unpack(">IIII", content[:16])
    assert (magic, height, width) == (2051, 28, 28)  # http://yann.lecun.com/exdb/mnist/
    assert len(content) == 16 + count * 28 * 28


def program(
    name: str,
    cause: str,
    severity: str,
    names: str,
    gain: float | None,
    framework: str = "PyTorch",
) -> Program:
    return Program(
        name=name,
        framework=framework,
        repository="a/b",
        left_out="",
        truth=Truth((cause,), "a change", 0.3, "because"),
        verdict=Verdict(
            recorded=True,
            said="a-rule",
            severity=severity,
            names=(names,),
            predicted=(0.1, 0.2, 0.3),
            gain=gain,
            noise=0.02,
            patch="helped",
            note="",
        ),
    )


@pytest.mark.parametrize(
    ("gain", "is_in_range", "is_slower"),
    [(0.25, True, False), (0.09, True, False), (0.05, False, False), (-0.05, False, True)],
)
def test_the_noise_of_the_measurement_counts(
    gain: float, is_in_range: bool, is_slower: bool
) -> None:
    verdict = program("a", "input", "high", "input", gain).verdict
    assert verdict is not None
    assert (verdict.is_in_range, verdict.is_slower) == (is_in_range, is_slower)


def test_rates_are_of_the_programs_that_they_are_about() -> None:
    batch = [
        program("right", "input", "high", "input", 0.25),
        program("wrong", "input", "medium", "host", -0.1),
        program("well", "healthy", "high", "host", None),
    ]
    lines = "\n".join(section(batch, "today"))
    assert "| known cause ranks first | 1 of 2 = 50 %" in lines
    assert "| first finding applied: gain in range | 1 of 2 = 50 %" in lines
    assert "| first finding applied: slower, *high* | 0 of 1 = 0 %" in lines
    assert "| first finding applied: slower, *medium* | 1 of 1 = 100 %" in lines
    assert "| healthy programs with a *high* finding | 1 of 1 = 100 %" in lines


def test_batches_are_pooled_by_framework() -> None:
    first = [program("right", "input", "high", "input", 0.25)]
    second = [
        program("wrong", "input", "medium", "host", -0.1),
        program("graph", "input", "medium", "host", 0.2, "JAX"),
    ]
    lines = list(pooled([first, second]))
    assert lines[0] == "| what | JAX | PyTorch | all 3 programs | target |"
    assert lines[2].startswith("| known cause ranks first | 0 of 1 | 1 of 2 | 1 of 3 = 33 %")
    assert lines[4].startswith("| first finding applied: slower, *high* | – | 0 of 1 | 0 of 1")


def test_the_page_pools_all_batches() -> None:
    page = FOLDER.parents[1] / "docs" / "accuracy.md"
    written = page.read_text(encoding="utf-8")
    assert "\n".join(pooled([judged_before()])) in written


def test_programs_of_our_own_are_counted_by_framework() -> None:
    batch = [
        replace(program("right", "input", "high", "input", 0.25), repository="."),
        replace(program("graph", "input", "high", "host", 0.25, "JAX"), repository="."),
    ]
    lines = "\n".join(section(batch, "today"))
    assert "2 of the 2 programs. 0 could not be run" in lines
    assert "| known cause ranks first | 0 of 1 | 1 of 1 | 1 of 2 = 50 %" in lines


def test_each_patch_of_our_own_programs_is_of_a_listed_program() -> None:
    folder = FOLDER.parent / "gpu_programs"
    listed = {recipe.command[1].removesuffix(".py") for recipe in recipes("gpu")}
    assert {path.stem for path in folder.glob("*.py")} == listed
    assert {path.stem for path in folder.glob("*.patch")} <= listed
