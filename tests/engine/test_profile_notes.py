from __future__ import annotations

from tb_perfadvisor.engine.profile_notes import profile_notes
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.trace import Note, Trace


def notes_of(trace: Trace) -> dict[str, Note]:
    return {note.id: note for note in profile_notes(Signals(run_of(trace)))}


def steps(count: int, device: str = "NVIDIA H100 80GB HBM3") -> Trace:
    builder = TraceBuilder().device(device)
    for number in range(count):
        builder.step(number, ms(5 * number), ms(5 * number + 5))
        builder.kernel("gemm", ms(5 * number), ms(5 * number + 4))
    return builder.build()


def test_a_good_profile_has_none() -> None:
    assert notes_of(steps(3)) == {}


def test_no_steps() -> None:
    note = notes_of(TraceBuilder().kernel("gemm", 0, ms(1)).build())
    assert note["no-steps"].severity == "warning"
    assert "prof.step()" in note["no-steps"].remedy


def test_few_steps() -> None:
    assert notes_of(steps(1))["few-steps"].message.startswith("One step is used: ")
    assert notes_of(steps(2))["few-steps"].message.startswith("2 steps are used: ")
    assert "few-steps" not in notes_of(steps(3))


def test_inferred_steps() -> None:
    trace = draw(
        """
        cell 1ms
        main  |ooz..ooz..ooz..ooz..|
        gpu 7 |.KK...KK...KK...KK..|
        """
    )
    note = notes_of(trace)["inferred-steps"]
    assert "inferred from repeats of Optimizer.step#SGD.step." in note.message
    assert "prof.step()" in note.remedy


def test_no_device_events() -> None:
    note = notes_of(TraceBuilder().step(0, 0, ms(2)).launch(0, ms(1)).build())["no-device-events"]
    assert note.severity == "error"
    assert "CUPTI" in note.remedy


def test_unknown_device() -> None:
    assert "'Fancy 9000'" in notes_of(steps(3, device="Fancy 9000"))["unknown-device"].message
    nameless = TraceBuilder().kernel("gemm", 0, ms(1)).build()
    assert "does not say what the device is" in notes_of(nameless)["unknown-device"].message


def test_what_the_reader_said_comes_first() -> None:
    own = Note("truncated-file", "warning", "The file breaks off.")
    trace = TraceBuilder().kernel("gemm", 0, ms(1)).note(own).build()
    assert next(iter(notes_of(trace))) == "truncated-file"


def test_a_program_on_the_cpu_lacks_no_device() -> None:
    trace = draw(
        """
        cell 1ms
        step |..|..|..|
        main |OO|OO|OO|
        """
    )
    assert notes_of(trace) == {}
