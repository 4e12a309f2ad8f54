from __future__ import annotations

from tb_perfadvisor.engine.analysis import Analysis
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals.recording.completeness import is_start_up, start_up
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns


def analyzed(malloc_ms: int, steps: int = 1) -> Analysis:
    """Steps of 20 ms. Each allocates device memory, and computes for 4 ms right after."""
    builder = TraceBuilder()
    for number in range(steps):
        begin = ms(20 * number)
        builder.step(number, begin, begin + ms(20))
        builder.host(EventKind.ALLOCATE, "cudaMalloc", begin, begin + ms(malloc_ms))
        builder.launch(begin + ms(malloc_ms), begin + ms(malloc_ms + 1), key=f"{number}")
        builder.kernel(
            "gemm", begin + ms(malloc_ms + 1), begin + ms(malloc_ms + 5), launched_by=f"{number}"
        )
    return analyze_run(run_of(builder.build()), Config())


def test_a_profile_of_start_up_says_so_first() -> None:
    found = analyzed(12)
    # cudaMalloc takes 12 of 20 ms.
    assert total_ns(start_up(found.signals)) == ms(12)
    assert found.headline == (
        "This records start-up, not the program at work: 60.0 % of the time is spent on what "
        "happens only once. Record again after a few steps"
    )
    assert found.first is None
    (note,) = [note for note in found.notes if note.id == "start-up"]
    assert note.severity == "error"
    assert "12.0 ms (60.0 %) of the analyzed time" in note.message
    assert "allocating memory" in note.message
    assert note.remedy


def test_less_than_a_third_of_the_time_is_no_start_up() -> None:
    found = analyzed(6)  # of 20 ms
    assert not [note for note in found.notes if note.id == "start-up"]
    assert not found.headline.startswith("This records start-up")


def test_a_third_is_start_up_unless_more_can_be_saved() -> None:
    signals = analyzed(8).signals  # of 20 ms
    assert is_start_up(signals, expected_ns=ms(8) - 1)
    assert not is_start_up(signals, expected_ns=ms(8))
    # Most of the time.
    assert is_start_up(analyzed(12).signals, expected_ns=ms(12))


def test_memory_that_every_step_allocates_is_no_start_up() -> None:
    assert total_ns(start_up(analyzed(12, steps=3).signals)) == 0


def test_capturing_a_graph_is_start_up() -> None:
    builder = TraceBuilder()
    for number, at in enumerate((0, 19)):
        builder.launch(ms(at), ms(at) + 10, key=f"{number}")
        builder.kernel("gemm", ms(at) + 10, ms(at + 1), launched_by=f"{number}")
    builder.host(EventKind.RUNTIME, "cudaStreamBeginCapture", ms(2), ms(2) + 10)
    builder.host(EventKind.RUNTIME, "cudaStreamEndCapture", ms(14) - 10, ms(14))
    found = analyze_run(run_of(builder.build()), Config())
    # 12 of 20 ms.
    assert total_ns(start_up(found.signals)) == ms(12)
    (note,) = [note for note in found.notes if note.id == "start-up"]
    assert "capturing graphs" in note.message
