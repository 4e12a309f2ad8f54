"""What every remedy keeps to, so that rules show only advice that fits the program."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator

import pytest

from tb_perfadvisor import rules
from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.signals.workload.parts import SERVERS, Part
from tb_perfadvisor.signals.workload.workload import Fact, Workload
from tests.support.advice_words import misfits


def _remedies() -> Iterator[Remedy]:
    """All remedies of modules in the package of rules."""
    for module in pkgutil.walk_packages(rules.__path__, f"{rules.__name__}."):
        for value in vars(importlib.import_module(module.name)).values():
            yield from _inside(value)


def _inside(value: object) -> Iterator[Remedy]:
    if isinstance(value, Remedy):
        yield value
    elif isinstance(value, tuple | list):
        yield from itertools.chain.from_iterable(map(_inside, value))
    elif isinstance(value, dict):
        yield from itertools.chain.from_iterable(map(_inside, value.values()))


IMPLIED = {
    Part.LOADER_WORKERS: Part.LOADER,
    Part.VLLM: Part.SERVER,
    Part.SGLANG: Part.SERVER,
    Part.TENSORRT_LLM: Part.SERVER,
    Part.FUSED_OPTIMIZER: Part.OPTIMIZER,
}
"""Parts that are there whenever another one is."""
REMEDIES = tuple(dict.fromkeys(_remedies()))


@pytest.mark.parametrize("remedy", REMEDIES, ids=lambda remedy: remedy.text[:40])
def test_a_remedy_names_only_what_programs_that_see_it_have(remedy: Remedy) -> None:
    """Try it on the least program that it fits, and on that with each other part added."""
    named = f"{remedy.text}\n{remedy.snippet}"
    for part in (None, *Part):
        parts = {*remedy.needs, *((part,) if part is not None else ())}
        parts |= {IMPLIED[part] for part in parts & set(IMPLIED)}
        program = Workload("unknown", tuple(Fact(part, "seen") for part in parts))
        if not _contradict(parts, remedy.framework) and remedy.fits(program):
            assert list(misfits(named, {part.label for part in parts})) == []


def _contradict(parts: set[Part], framework: str) -> bool:
    """Whether no program has all these parts."""
    training = {
        *(Part.TRAINING, Part.OPTIMIZER, Part.FUSED_OPTIMIZER, Part.GRADIENTS_16_BIT, Part.DDP),
        *(Part.HF_TRAINER, Part.TORCHTITAN, Part.CHECKPOINTING, Part.DEEPSPEED),
    }
    forward = {Part.FORWARD_ONLY, Part.SERVER, *SERVERS, Part.HF_PIPELINE}
    kinds = ({Part.GPU, Part.NVIDIA, Part.AMD, Part.DEVICE_GRAPHS}, {Part.TPU}, {Part.CPU_ONLY})
    return (
        bool(parts & training and parts & forward)
        or sum(bool(parts & kind) for kind in kinds) > 1
        or {Part.NVIDIA, Part.AMD} <= parts
        # Only programs of PyTorch are told apart so far.
        or (framework in ("tensorflow", "jax") and bool(parts & forward))
    )


def test_one_change_has_one_piece_of_code_for_each_kind_of_program() -> None:
    """Different rules give the same advice in the same words of code."""
    decided_by_size = {"bucket-size"}  # Larger or smaller: the engine lets one of them stand.
    code: dict[tuple[str, str, tuple[Part, ...]], set[str]] = {}
    for remedy in REMEDIES:
        if remedy.change and remedy.snippet and remedy.change not in decided_by_size:
            key = (remedy.change, remedy.framework, remedy.needs)
            code.setdefault(key, set()).add(remedy.snippet)
    assert {key: snippets for key, snippets in code.items() if len(snippets) > 1} == {}
