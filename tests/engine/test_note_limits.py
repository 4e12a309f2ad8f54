"""Notes on a recording exactly at their limits, and on both sides."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.machine.facts import Load
from tb_perfadvisor.note import Note
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import CopyDirection, EventKind, Trace


def notes_of(trace: Trace) -> dict[str, Note]:
    return {note.id: note for note in profile_notes(Signals(run_of(trace)))}


@pytest.mark.parametrize(
    ("copied_ms", "severity"), [(4, None), (5, "info"), (50, "info"), (51, "warning")]
)
def test_set_up_of_a_part_of_the_recording(copied_ms: int, severity: str | None) -> None:
    # Copies, then kernels up to 100 ms: a twentieth is worth a note, more than half a warning.
    builder = TraceBuilder().copy(CopyDirection.HOST_TO_DEVICE, 0, ms(copied_ms), size_bytes=10)
    builder.kernel("k", ms(copied_ms), ms(100))
    note = notes_of(builder.build()).get("set-up")
    assert (note.severity if note else None) == severity


@pytest.mark.parametrize(("compiled_ms", "is_noted"), [(4, False), (5, False), (6, True)])
def test_compiling_in_a_twentieth_of_the_steps(compiled_ms: int, is_noted: bool) -> None:
    builder = TraceBuilder()
    for number in range(4):
        begin = ms(25 * number)
        builder.step(number, begin, begin + ms(25))
        builder.launch(begin, begin + ms(1), key=str(number))
        builder.kernel("k", begin + ms(1), begin + ms(18), launched_by=str(number))
    builder.host(EventKind.COMPILE, "compile", ms(19), ms(19 + compiled_ms))
    assert ("compile-in-window" in notes_of(builder.build())) == is_noted


@pytest.mark.parametrize(("share", "is_noted"), [(0.09, False), (0.1, True)])
def test_a_machine_of_which_others_use_a_tenth(share: float, is_noted: bool) -> None:
    trace = TraceBuilder().operator("aten::mm", 0, ms(1), launches=False).build()
    trace = replace(trace, facts=replace(trace.facts, load=Load(others=share, idle=0.5)))
    assert ("loaded-machine" in notes_of(trace)) == is_noted


@pytest.mark.parametrize(("work_ms", "is_noted"), [(2, False), (30, True)])
def test_runs_matched_with_steps_by_their_order(work_ms: int, is_noted: bool) -> None:
    # Steps of 10 ms on the host. The note is about times of the device, so it must decide them.
    builder = TraceBuilder("jax").device("TPU v5e", kind="tpu", memory_bytes=2**34)
    at = ms(1)
    for number in range(6):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10), thread="python")
        at = max(at, begin + ms(1))
        builder.derived("modules", "jit_f(1)", at, at + ms(work_ms))
        builder.xla_op("fusion.1", at, at + ms(work_ms), module="jit_f(1)", launched_by="")
        at += ms(work_ms)
    assert ("linked-by-order" in notes_of(builder.build())) == is_noted
