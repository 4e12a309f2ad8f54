from __future__ import annotations

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
