"""Operators that a program could do without: by recording, and by what could be looked for."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.engine.analyze import run_rule
from tb_perfadvisor.engine.recording_notes import recording_notes
from tb_perfadvisor.machine.facts import Examined, Facts, FailedLook
from tb_perfadvisor.rules.compute.examined_results import PaddedSequences, RepeatedResults
from tb_perfadvisor.rules.launch.launching import IndependentCalls
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, find, run_of, us
from tb_perfadvisor.trace import Trace
from tests.support import examined
from tests.support.examined import observed

KERNELS = 100


def program(kernel_us: int, kind: str, *, on_device: bool) -> Trace:
    """Three steps of 2 ms, in which every 20 µs an operator launches a kernel."""
    builder = TraceBuilder()
    for step in range(3):
        first = 2000 * step
        builder.step(step, us(first), us(first + 2000))
        for number in range(KERNELS):
            at, key = first + 20 * number, f"{step} {number}"
            builder.operator("aten::mm", us(at), us(at + 18))
            builder.launch(us(at + 5), us(at + 15), key=key)
            builder.kernel("k", us(at + 6), us(at + 6 + kernel_us), launched_by=key)
    found = observed(kind, 0.25)  # type: ignore[arg-type]
    facts = Facts(examined=Examined(4, 0.04, KERNELS, on_device=on_device, observed=(found,)))
    return replace(builder.build(), facts=facts)


@pytest.mark.parametrize("kernel_us", [14, 20])
def test_a_part_of_the_time_of_the_device(kernel_us: int) -> None:
    (finding,) = find(RepeatedResults, program(kernel_us, "same in every step", on_device=True))
    assert finding.saving.expected_ns == pytest.approx(0.25 * 3 * KERNELS * us(kernel_us), rel=0.01)


def test_calls_that_the_device_waits_for_take_their_own_time_as_well() -> None:
    (finding,) = find(RepeatedResults, program(2, "same in every step", on_device=False))
    assert finding.saving.expected_ns == pytest.approx(0.25 * 3 * KERNELS * us(18), rel=0.01)


def test_one_call_for_many_saves_where_calls_limit() -> None:
    (finding,) = find(IndependentCalls, program(2, "independent", on_device=False))
    assert finding.saving.expected_ns == pytest.approx(0.9 * 0.25 * 3 * KERNELS * us(18), rel=0.01)
    assert find(IndependentCalls, program(14, "independent", on_device=True)) == ()


def test_evidence_is_of_recordings_that_have_the_operators() -> None:
    found = observed("same in every step", 0.3)
    assert find(RepeatedResults, examined.program(found, operator="aten::mm"))
    assert find(RepeatedResults, examined.program(found, operator="aten::add")) == ()
    of_function = replace(found, operator="encoder")  # as TensorFlow's are named
    assert find(RepeatedResults, examined.program(of_function, operator="MatMul"))


def test_a_look_that_failed_is_said_and_the_others_count() -> None:
    failed = FailedLook("padding", "TypeError: Got unsupported ScalarType BFloat16")
    trace = examined.program(observed("same in every step", 0.3), failed=(failed,))
    signals = Signals(run_of(trace))
    assert run_rule(RepeatedResults(), signals).status == "found"
    outcome = run_rule(PaddedSequences(), signals)
    assert outcome.status == "not_applicable"
    assert outcome.reason == (
        "the recorder could not look for padding in the tensors: "
        "TypeError: Got unsupported ScalarType BFloat16"
    )
    (note,) = [n for n in recording_notes(signals, starts_up=False) if n.id == "failed-look"]
    assert note.severity == "warning"
    assert note.message == (
        "In the tensors of a few steps, `perfadvisor run` could not look for padding: TypeError: "
        "Got unsupported ScalarType BFloat16. What that would have shown is missing here."
    )


def test_without_operators_there_is_no_look() -> None:
    failed = FailedLook("operators", "the program captured a CUDA graph")
    trace = examined.program()
    trace = replace(trace, facts=Facts(examined=Examined(failed=(failed,))))
    signals = Signals(run_of(trace))
    assert run_rule(RepeatedResults(), signals).status == "not_applicable"
    (note,) = [n for n in recording_notes(signals, starts_up=False) if n.id == "failed-look"]
    assert "could not look at what operators read and write: the program captured" in note.message
