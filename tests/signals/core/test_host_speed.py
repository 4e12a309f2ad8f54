"""Programs on a device of which only the host was recorded."""

from __future__ import annotations

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.engine.analyze import analyze_run
from tb_perfadvisor.engine.config import Config
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.host_speed import outruns_hosts, starts_a_device
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.testing.builder import Builder
from tb_perfadvisor.trace import EventKind, Trace
from tests.support.command import DEMO

LARGE = [[16384, 8192]]
"""512 MiB in 32 bits."""


def program(square_ns: int, *, shapes: list[list[int]] | None = LARGE) -> Builder:
    """A tensor that takes 0.7 s to fill on the host, and is squared."""
    builder = TraceBuilder("pytorch").operator("aten::randn", 0, ms(700), launches=False)
    return builder.operator(
        "aten::pow",
        ms(700),
        ms(700) + square_ns,
        shapes=shapes,
        dtypes=["float"],
        launches=False,
    )


def is_missing(trace: Trace) -> bool:
    return Signals(run_of(trace)).device.is_missing


def test_a_square_in_no_time_is_a_launch() -> None:
    # Reading and writing 512 MiB takes 0.54 ms at 2 TB/s; the recorded program took 0.3 ms.
    trace = program(ms(0.3)).build()
    assert outruns_hosts(trace)
    assert is_missing(trace)
    notes = {note.id for note in analyze_run(run_of(trace), Config()).notes}
    assert "device-events-missing" in notes


def test_what_a_fast_host_computes_is_not() -> None:
    # 0.6 ms are 1.8 TB/s: more than any host, but within the limit.
    assert not outruns_hosts(program(ms(0.6)).build())
    assert not is_missing(program(ms(40)).build())


@pytest.mark.parametrize("shapes", [None, [[4096, 8192]]])
def test_small_tensors_and_unknown_ones_tell_nothing(shapes: list[list[int]] | None) -> None:
    # 128 MiB fit into the caches of a server.
    assert not outruns_hosts(program(ms(0.01), shapes=shapes).build())


def product(took_ns: int, count: int = 1) -> Builder:
    builder = TraceBuilder("pytorch")
    for number in range(count):
        begin = number * ms(1000)
        builder.operator(
            "aten::mm", begin, begin + took_ns, shapes=[[4096, 4096], [4096, 4096]], launches=False
        )
    return builder


def test_a_product_in_microseconds() -> None:
    # 2 · 4096^3 are 137 GFLOP: 137 µs at 1e15 per second. A large server takes 10 ms.
    assert is_missing(product(ms(0.02)).build())
    assert not is_missing(product(ms(10)).build())


def test_most_large_operators_must_be_too_fast() -> None:
    builder = product(ms(400), count=2)
    builder.operator(
        "aten::mm", ms(900), ms(900.02), shapes=[[4096, 4096], [4096, 4096]], launches=False
    )
    assert not outruns_hosts(builder.build())


def test_a_compiler_runs_operators_on_tensors_without_content() -> None:
    builder = product(ms(0.02)).host(
        EventKind.PYTHON, "torch/_subclasses/fake_tensor.py(1200): dispatch", 0, ms(1)
    )
    assert not outruns_hosts(builder.build())


def first_copy(reserving_ns: int) -> Trace:
    builder = TraceBuilder("pytorch").operator("aten::to", 0, ms(4000), launches=False)
    builder.operator("aten::empty_strided", ms(1), ms(1) + reserving_ns, launches=False)
    return builder.build()


def test_the_first_copy_starts_the_device() -> None:
    """A first `.to` of 3.8 s, nearly all of it in the allocation."""
    assert starts_a_device(first_copy(ms(3800)))
    assert is_missing(first_copy(ms(3800)))
    assert not starts_a_device(first_copy(ms(20)))


@pytest.mark.parametrize(
    "name", ["aten::cudnn_convolution", "aten::_cudnn_rnn", "aten::miopen_batch_norm"]
)
def test_operators_that_the_cpu_does_not_have(name: str) -> None:
    assert is_missing(TraceBuilder("pytorch").operator(name, 0, ms(1), launches=False).build())


def test_calls_of_the_runtime_without_launches() -> None:
    builder = TraceBuilder("pytorch").operator("aten::item", 0, ms(2), launches=False)
    assert not is_missing(builder.build())
    builder.synchronize(ms(1), ms(2))
    assert is_missing(builder.build())


@pytest.mark.parametrize("run", ["pytorch_input_slow"])
def test_recorded_programs_on_the_cpu(run: str) -> None:
    (report,) = [analyze(DEMO / run)]
    assert "device-events-missing" not in {note.id for note in report.notes}
