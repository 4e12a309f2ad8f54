"""Programs are written to files, because the lines of loops and conditions are read from them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from tb_perfadvisor.instrument.step_hooks import StepPath

PROGRAM = """
def evaluate(seen):
    seen("evaluation")

def step(number, seen):
    seen(f"step {number}")

def epoch(seen):
    for number in range(4):
        step(number, seen)
        if number % 2 == 1:
            evaluate(seen)
        seen("in each")

def main(seen):
    for _ in range(2):
        epoch(seen)
        evaluate(seen)
    evaluate(seen)

main(seen)
"""


def run(tmp_path: Path, seen: Callable[[str, FrameType], None]) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM, encoding="utf-8")

    def called(what: str) -> None:
        seen(what, sys._getframe(1))

    exec(compile(PROGRAM, str(file), "exec"), {"seen": called})


def test_tells_steps_from_what_runs_seldom(tmp_path: Path) -> None:
    path = StepPath()
    found: list[tuple[str, int, str] | str] = []

    def seen(what: str, frame: FrameType) -> None:
        if what.startswith("step"):
            path.add(frame)
        apart = path.apart(frame)
        found.append(what if apart is None else (what, apart[0].f_lineno, apart[1]))

    run(tmp_path, seen)
    one_epoch = [
        *("step 0", "in each", "step 1", ("evaluation", 12, "every few steps"), "in each"),
        *("step 2", "in each", "step 3", ("evaluation", 12, "every few steps"), "in each"),
        ("evaluation", 18, "between epochs"),
    ]
    # Behind the last epoch, nothing is repeated.
    assert found == [*one_epoch, *one_epoch, "evaluation"]


def test_loops_inside_of_a_step(tmp_path: Path) -> None:
    program = """
def letter(seen):
    seen("called")

def letters(seen):
    for _ in range(1):
        seen("one by one")
        letter(seen)
    seen("behind")

for number in range(2):
    seen("step")
    letters(seen)
    for _ in range(1):
        seen("inner")
"""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    path, repeats = StepPath(), {}

    def seen(what: str) -> None:
        frame = sys._getframe(1)
        if what == "step":
            path.add(frame)
        repeats[what] = path.repeats(frame)

    exec(compile(program, str(file), "exec"), {"seen": seen})
    assert repeats == {
        "step": False,
        "one by one": True,
        "called": True,
        "behind": False,
        "inner": True,
    }


def test_rounds_of_a_generator_are_those_of_the_loop_that_asks_it(tmp_path: Path) -> None:
    program = """
def batches(seen):
    for number in range(2):
        seen("step")
        yield number

for _ in range(2):
    for number in batches(seen):
        seen("in each")
        for inner in range(1):
            if (number + inner) % 2 == 0:
                seen("a branch of the work")
        if number % 2 == 0:
            seen("seldom")
    seen("behind")
"""
    file = tmp_path / "program.py"
    file.write_text(program, encoding="utf-8")
    path, apart = StepPath(), {}

    def seen(what: str) -> None:
        frame = sys._getframe(1)
        if what == "step":
            path.add(frame)
        found = path.apart(frame)
        apart[what] = None if found is None else found[1]

    exec(compile(program, str(file), "exec"), {"seen": seen})
    assert apart == {
        "step": None,
        "in each": None,
        "a branch of the work": None,
        "seldom": "every few steps",
        "behind": "between epochs",
    }
