from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.launch.first_calls import FirstCall, FirstCalls, first_calls
from tb_perfadvisor.testing import TraceBuilder, ms, run_of, us
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns


def first_calls_of(builder: Builder) -> FirstCalls:
    return first_calls(Signals(run_of(builder.build())))


def us_by_kind(builder: Builder) -> dict[FirstCall, float]:
    found = first_calls_of(builder).by_kind
    return {kind: total_ns(intervals) / 1000 for kind, intervals in found.items()}


def launched(builder: Builder, name: str, at_us: float, call_us: float, key: str) -> Builder:
    """A launch call, and its kernel of 10 us directly after it."""
    end = us(at_us + call_us)
    builder.launch(us(at_us), end, key=key)
    return builder.kernel(name, end, end + us(10), launched_by=key)


def forward(first_launch_us: float) -> Builder:
    """Launches of two kernels, each 100 us apart; the first of `cat` is at 2,000 us."""
    builder = TraceBuilder()
    for number in range(10):
        launched(builder, "gemm", 100 * number, 5, f"gemm {number}")
    launched(builder, "cat", 2_000, first_launch_us, "first")
    for number in range(10):
        launched(builder, "cat", 3_000 + 100 * number, 5, f"cat {number}")
    return builder


def test_a_slow_first_launch_counts_with_the_gap_before_it() -> None:
    # The last `gemm` ends at 900 + 5 + 10 = 915 us; the first `cat` begins at 2,000 + 126.
    assert us_by_kind(forward(126)) == {FirstCall.FIRST_LAUNCH: 2_126 - 915}


def test_just_below_and_just_above_the_limit() -> None:
    # 50 us, which is ten times the median launch.
    assert us_by_kind(forward(49)) == {}
    assert us_by_kind(forward(50)) == {FirstCall.FIRST_LAUNCH: 2_050 - 915}


def test_slow_later_launches_are_no_first_calls() -> None:
    # 126 us for the fifth launch of `gemm`: something else held the host up.
    builder = TraceBuilder()
    for number in range(10):
        launched(builder, "gemm", 1_000 * number, 126 if number == 4 else 5, f"{number}")
    assert us_by_kind(builder) == {}


def test_a_device_whose_events_have_no_length() -> None:
    builder = TraceBuilder()
    fetch = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    builder.host(EventKind.INPUT_WAIT, fetch, us(0), us(100))
    builder.launch(us(200), us(205), key="a").kernel("gemm", us(210), us(210), launched_by="a")
    assert us_by_kind(builder) == {}


def test_loading_code() -> None:
    builder = launched(TraceBuilder(), "gemm", 0, 5, "a")
    # The call takes 800 us. The kernel still runs during the first 15.
    builder.host(EventKind.RUNTIME, "cuModuleLoadData", us(0), us(800))
    launched(builder, "gemm", 900, 5, "b")
    assert us_by_kind(builder) == {FirstCall.LOADING: 785}


def convolutions(*lengths_ms: float) -> Builder:
    builder = launched(TraceBuilder(), "gemm", 0, 5, "first")
    begin = 1.0
    for number, length in enumerate(lengths_ms):
        builder.operator("aten::cudnn_convolution", ms(begin), ms(begin + length), launches=False)
        launched(builder, "conv", 1_000 * (begin + length), 5, f"{number}")
        begin += length + 1
    return builder


def test_a_search_for_the_fastest_convolution() -> None:
    assert us_by_kind(convolutions(12, 1, 1)) == {FirstCall.SEARCH: 12_000}
    # 9 ms are too short, and 12 ms are too little if the others take 2.
    assert us_by_kind(convolutions(9, 0.5, 0.5)) == {}
    assert us_by_kind(convolutions(12, 2, 2)) == {}


def test_one_call_shows_no_usual_time() -> None:
    assert us_by_kind(convolutions(12)) == {}


def test_the_first_call_of_a_compiled_region() -> None:
    builder = launched(TraceBuilder(), "gemm", 0, 5, "first")
    for number, (begin, end) in enumerate(((1, 7), (8, 9), (10, 11))):
        builder.annotation("Torch-Compiled Region: 0/0", ms(begin), ms(end))
        launched(builder, "triton", 1_000 * end, 5, f"{number}")
    assert us_by_kind(builder) == {FirstCall.COMPILED_REGION: 6_000}


def test_a_program_on_the_cpu_has_none() -> None:
    builder = TraceBuilder().operator("aten::mm", 0, ms(1), launches=False)
    builder.host(EventKind.RUNTIME, "cuModuleLoadData", 0, ms(1))
    assert first_calls_of(builder).by_kind == {}


def test_work_that_waits_while_code_is_loaded() -> None:
    builder = forward(5)
    # At 5 ms, 80 us of work are queued behind a launch that loads code for 900 us, and start late.
    builder.launch(us(5_000), us(5_005), key="queued")
    launched(builder, "add", 5_010, 900, "loads")
    builder.kernel("gemm", us(5_500), us(5_580), launched_by="queued")
    # From the last `cat` at 3,915 us until 5,910, without the 80 us.
    assert us_by_kind(builder) == {FirstCall.FIRST_LAUNCH: 910 - 500 - 80 + 500 - 10}


@pytest.mark.parametrize(("call_us", "found_us"), [(49, None), (400, 400)])
def test_the_first_question_about_a_kernel_loads_it(call_us: float, found_us: float | None) -> None:
    builder = launched(TraceBuilder(), "gemm", 0, 5, "a")
    name = "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags"
    builder.host(EventKind.RUNTIME, name, us(100), us(100 + call_us))
    launched(builder, "gemm", 900, 5, "b")
    assert us_by_kind(builder).get(FirstCall.LOADING) == found_us


def generated(gap_ms: float, *, name: str = "triton_poi_fused_add_0", calls: int = 0) -> Builder:
    """A generated kernel twice, the first time after a gap without other events."""
    builder = launched(TraceBuilder(), "gemm", 0, 5, "first")
    for number in range(calls):
        builder.host(EventKind.RUNTIME, "cudaEventQuery", ms(10 * number), ms(10 * number + 9))
    launched(builder, name, 15 + 1_000 * gap_ms - 5, 5, "once")
    return launched(builder, name, 1_000 * gap_ms + 500, 5, "again")


def test_compiling_before_the_first_launch_of_a_generated_kernel() -> None:
    assert us_by_kind(generated(100)) == {FirstCall.GENERATING: 100_000}
    assert us_by_kind(generated(99)) == {}
    assert us_by_kind(generated(100, name="vectorized_elementwise_kernel")) == {}
    # What the host did was recorded.
    assert us_by_kind(generated(100, calls=10)) == {}


def functions(*lengths_us: float, name: str = "rope.py(58): apply_rope") -> Builder:
    builder = launched(TraceBuilder(), "gemm", 0, 5, "first")
    at = 100.0
    for number, length in enumerate(lengths_us):
        builder.host(EventKind.PYTHON, name, us(at), us(at + length))
        launched(builder, "gemm", at + length - 15, 5, f"{number}")
        at += length + 20
    return builder


def test_the_first_call_of_a_function_that_later_calls_do_without() -> None:
    # Each call ends with a kernel of 10 us.
    assert us_by_kind(functions(2_010, 60, 60, 60)) == {FirstCall.FUNCTION: 2_000}
    assert us_by_kind(functions(2_010, 260, 60, 60)) == {}  # not even ten times as long
    assert us_by_kind(functions(2_010, 60, 60)) == {}  # too few calls to know
    assert us_by_kind(functions(909, 60, 60, 60)) == {}  # too short
    built_in = "<built-in method to of Tensor object at 0x7ff>"
    assert us_by_kind(functions(2_010, 60, 60, 60, name=built_in)) == {}


def test_a_function_that_calls_itself_has_no_first_call() -> None:
    builder = functions(60, 60, 60)
    builder.host(EventKind.PYTHON, "rope.py(58): apply_rope", us(90), us(5_000))
    launched(builder, "gemm", 4_000, 5, "last")
    assert us_by_kind(builder) == {}


def searching(waits: int) -> Builder:
    """A convolution that times candidates, and waits for an event after each."""
    builder = TraceBuilder()
    builder.operator("aten::cudnn_convolution", 0, us(2_000), launches=False)
    for number in range(waits):
        launched(builder, f"candidate_{number}", 100 + 400 * number, 5, f"{number}")
        start = us(120 + 400 * number)
        builder.synchronize(start, start + us(20), name="cudaEventSynchronize")
    return launched(builder, "gemm", 2_500, 5, "last")


@pytest.mark.parametrize(("waits", "is_search"), [(2, False), (3, True)])
def test_a_convolution_that_waits_for_events_searches(waits: int, is_search: bool) -> None:
    assert (FirstCall.SEARCH in us_by_kind(searching(waits))) is is_search
