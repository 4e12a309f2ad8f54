"""Hints on recording are those of the program that was profiled."""

from __future__ import annotations

import re

import pytest

from tb_perfadvisor.signals import Need
from tb_perfadvisor.signals.recording.hints import DEVICE_EVENTS, HINTS, MEMORY, STACKS, hint_for
from tb_perfadvisor.signals.recording.profiled_steps import MARK_STEPS, MORE_STEPS, SKIP_WARM_UP
from tb_perfadvisor.signals.workload.fit import first_fitting
from tb_perfadvisor.signals.workload.workload import SERVERS, Fact, Part, Workload


def program(*parts: Part, base: str = "pytorch") -> Workload:
    return Workload(base, tuple(Fact(part, "seen") for part in parts))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        # The projects' own code has these names; `profiled_steps.py` lists it.
        ((Part.SERVER, Part.VLLM), "--profiler-config.torch_profiler_record_shapes=true"),
        ((Part.SERVER, Part.SGLANG), '"record_shapes": true'),
        ((Part.LIGHTNING,), "PyTorchProfiler(record_shapes=True)"),
        ((Part.MEGATRON,), "--pytorch-profiler-collect-shapes"),
        ((Part.NSIGHT, Part.NVIDIA), "--pytorch=autograd-shapes-nvtx"),
        ((), "Record with record_shapes=True."),
    ],
)
def test_shapes_are_switched_on_where_the_framework_does_it(
    parts: tuple[Part, ...], words: str
) -> None:
    assert words in hint_for(Need.SHAPES, program(*parts))


def test_what_only_torch_profiler_records_names_it() -> None:
    recorded = program(Part.NSIGHT, Part.NVIDIA)
    assert "--python-sampling" in first_fitting(STACKS, recorded)
    assert "torch.profiler and profile_memory=True" in first_fitting(MEMORY, recorded)


@pytest.mark.parametrize("part", SERVERS)
def test_a_server_has_no_loop_to_change(part: Part) -> None:
    served = program(Part.SERVER, part)
    for hints in (*HINTS.values(), MARK_STEPS, MORE_STEPS, SKIP_WARM_UP):
        hint = first_fitting(hints, served)
        assert not re.search(r"\.step\(\)|schedule\(|DataLoader|training step", hint), hint


@pytest.mark.parametrize("part", [Part.SERVER, Part.DIFFUSERS])
def test_requests_and_prompts_need_no_loader(part: Part) -> None:
    assert hint_for(Need.INPUT, program(part)) == ""


def test_a_profile_without_calls_of_step_is_not_told_of_a_schedule() -> None:
    assert "schedule" in first_fitting(MORE_STEPS, program(Part.STEP_CALLS))
    assert "schedule" not in first_fitting(MORE_STEPS, program())


def test_profiling_libraries_are_those_of_the_vendor() -> None:
    assert "CUPTI" in first_fitting(DEVICE_EVENTS, program(Part.NVIDIA))
    assert "CUPTI" not in first_fitting(DEVICE_EVENTS, program(Part.AMD))


def test_a_program_of_an_unknown_framework_gets_no_words_of_a_framework() -> None:
    assert hint_for(Need.STEPS, program(base="unknown")) == "Mark the steps in the training script."
