from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.idle import IdleOwner, idle_owners
from tb_perfadvisor.signals.launch.device_graphs import graph_captures, graph_replays, runs_graphs
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import Builder, ms, us
from tb_perfadvisor.trace import EventKind
from tb_perfadvisor.trace.intervals import total_ns


def test_replays_count_their_events() -> None:
    builder = TraceBuilder()
    builder.launch(0, us(10), key="single")
    builder.kernel("gemm", us(10), us(40), launched_by="single")
    for index in range(2):
        at = us(100 + 100 * index)
        builder.launch(at, at + us(10), name="hipGraphLaunch", key=f"graph {index}")
        for kernel in range(5):
            start = at + us(20 + 9 * kernel)
            builder.kernel("gemm", start, start + us(9), launched_by=f"graph {index}")
    replays = graph_replays(Signals(run_of(builder.build())))
    assert replays.event_count.tolist() == [5, 5]


def test_a_program_without_graphs_has_no_replays() -> None:
    builder = TraceBuilder()
    builder.launch(0, us(10), name="cudaGraphInstantiate", key="launch")
    builder.kernel("gemm", us(10), us(40), launched_by="launch")
    assert not runs_graphs(Signals(run_of(builder.build())))


def launched(builder: Builder, at_ns: int, key: str) -> None:
    builder.launch(at_ns, at_ns + us(5), key=key)
    builder.kernel("gemm", at_ns + us(5), at_ns + us(15), launched_by=key)


@pytest.mark.parametrize("prefix", ["cuda", "hip"])
def test_recording_and_building_a_graph_is_a_capture(prefix: str) -> None:
    builder = TraceBuilder()
    launched(builder, 0, "first")
    builder.host(EventKind.RUNTIME, f"{prefix}StreamBeginCapture", us(100), us(110))
    builder.host(EventKind.RUNTIME, f"{prefix}StreamEndCapture", us(500), us(600))
    builder.host(EventKind.RUNTIME, f"{prefix}GraphInstantiate", us(650), us(700))
    launched(builder, us(900), "last")
    signals = Signals(run_of(builder.build()))
    captures = graph_captures(signals)
    assert captures.count == 1
    assert captures.capturing.tolist() == [[us(100), us(600)], [us(650), us(700)]]
    assert captures.setting_up.tolist() == captures.capturing.tolist()
    assert total_ns(idle_owners(signals)[IdleOwner.GRAPH_CAPTURE]) == us(550)


def test_captures_before_the_window_do_not_count() -> None:
    builder = TraceBuilder()
    builder.host(EventKind.RUNTIME, "cudaGraphInstantiate", us(0), us(50))
    launched(builder, us(100), "first")
    assert graph_captures(Signals(run_of(builder.build()))).count == 0


def test_the_warm_up_of_compiled_code_belongs_to_the_capture() -> None:
    builder = TraceBuilder()
    launched(builder, 0, "first")
    builder.operator("Torch-Compiled Region: 0/0", ms(1), ms(9), launches=False)
    builder.host(EventKind.RUNTIME, "cudaStreamBeginCapture", ms(3), ms(4))
    builder.host(EventKind.RUNTIME, "cudaStreamEndCapture", ms(5), ms(6))
    launched(builder, ms(10), "last")
    captures = graph_captures(Signals(run_of(builder.build())))
    assert captures.capturing.tolist() == [[ms(3), ms(6)]]
    assert captures.setting_up.tolist() == [[ms(1), ms(9)]]
