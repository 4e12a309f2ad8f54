"""What recorders note of the parts that a program makes."""

from __future__ import annotations

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
