from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.call_tree import self_time
from tb_perfadvisor.signals.launch.delays import short_and_long_gaps
from tb_perfadvisor.testing import TraceBuilder, draw, run_of
from tb_perfadvisor.testing.builder import ms
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import single


def test_gaps_exclude_queued_work() -> None:
    # Gaps of 1 and 3 cells end with launches of their own; the one of 2 was launched before.
    trace = draw(
        """
        cell 1ms
        main   |o.o'...o......|
        gpu 7  |K.K...K....K..|
        """,
        links={("gpu 7", 1): ("main", 1), ("gpu 7", 2): ("main", 2), ("gpu 7", 3): ("main", 3)},
    )
    signals = Signals(run_of(trace))
    short, long = short_and_long_gaps(signals.attribution.idle, ms(2))
    assert short.tolist() == [[ms(1), ms(2)]]
    # o at 3 ms launches the third kernel (its gap, 3 to 6 ms), o at 7 ms the fourth (7 to 11).
    assert long.tolist() == [[ms(3), ms(6)], [ms(7), ms(11)]]


def test_self_time_excludes_nested_events() -> None:
    # Frame a holds b (4 ms), which holds a runtime call of 1 ms: a has 10 - 4, b all of its 4.
    builder = TraceBuilder()
    builder.host(EventKind.PYTHON, "a", ms(0), ms(10))
    builder.host(EventKind.PYTHON, "b", ms(2), ms(6))
    builder.host(EventKind.RUNTIME, "cudaGetDevice", ms(3), ms(4))
    trace = builder.build()
    times = self_time(trace, 0, single(0, ms(10)))
    assert times.names == ("a", "b")
    assert times.self_ns == (ms(6), ms(4))
    # Of [1, 5) ms b has 3 ms and a the first.
    assert self_time(trace, 0, single(ms(1), ms(5))).self_ns == (ms(3), ms(1))


def test_a_runtime_call_between_frames_is_passed_over() -> None:
    builder = TraceBuilder()
    builder.host(EventKind.PYTHON, "a", ms(0), ms(10))
    builder.host(EventKind.RUNTIME, "callback", ms(2), ms(8))
    builder.host(EventKind.PYTHON, "b", ms(3), ms(7))
    times = self_time(builder.build(), 0, single(0, ms(10)))
    assert dict(zip(times.names, times.self_ns, strict=True)) == {"a": ms(6), "b": ms(4)}
