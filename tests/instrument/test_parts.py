"""What recorders note of the parts that a program makes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tb_perfadvisor.instrument.parts import Parts, watch_loaders


class DataLoader:
    """Has what the watcher reads of PyTorch's."""

    multiprocessing_context = None
    persistent_workers = False

    def __init__(self, dataset: list[int], num_workers: int = 0) -> None:
        self.dataset, self.num_workers = dataset, num_workers


def test_a_loader_that_nothing_keeps_has_its_facts() -> None:
    parts = Parts()
    watch_loaders(parts, DataLoader)
    for _ in DataLoader([1, 2, 3]).dataset:
        pass  # as in `for batch in DataLoader(…):`, where only the iterator stays
    (made,) = parts.all()
    assert (made.what, made.name) == ("loader", "DataLoader")
    assert (made.facts["num_workers"], made.facts["samples"]) == (0, 3)
    assert made.path.endswith("test_parts.py")


def test_facts_of_a_loader_that_stays_are_those_of_now() -> None:
    parts = Parts()
    watch_loaders(parts, DataLoader)
    loader = DataLoader([1])
    loader.num_workers = 2
    (made,) = parts.all()
    assert made.facts["num_workers"] == 2


LOOPS = """
def main(step):
    step()
    for _ in range(2):
        step()
    while True:
        step()
        break
    step()
"""


def test_the_loop_of_the_last_step_comes_first_and_other_lines_are_none(tmp_path: Path) -> None:
    path = tmp_path / "loops.py"
    path.write_text(LOOPS)
    parts, seen = Parts(), []

    def step() -> None:
        parts.add_step("step", sys._getframe(1))
        first = parts.all()[0]
        seen.append((first.line, first.facts.get("is_loop", True)))

    space: dict[str, Any] = {}
    exec(compile(LOOPS, str(path), "exec"), space)
    space["main"](step)
    assert seen == [(3, False), (4, True), (4, True), (6, True), (9, False)]
    assert len(parts.all()) == 4
