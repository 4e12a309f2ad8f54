from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.efficiency.costliest_work import costliest_work
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of
from tb_perfadvisor.testing.symbols import operator

H100 = "NVIDIA H100 80GB HBM3"


def named(signals: Signals) -> list[tuple[str, bool, int]]:
    """Names, whether nothing runs meanwhile, and milliseconds of the window."""
    return [(work.name, work.is_idle, work.time_ns // ms(1)) for work in costliest_work(signals)]


def test_work_has_its_operators_names_and_idle_time_the_calls_of_the_host() -> None:
    drawing = """
        cell 1ms
        step   |..........|..........|
        main   |mmoppppppp|mmoppppppp|
        gpu 7  |..HHHK....|..HHHK....|
    """
    legend = {"m": operator("aten::mm"), "o": operator("aten::add")}
    assert named(Signals(run_of(draw(drawing, legend=legend)))) == [
        ("aten::add", False, 8),  # it launches both kernels: four of ten milliseconds, twice
        ("modules/module.py:1751 _wrapped_call_impl", True, 8),
    ]


def test_what_runs_at_the_same_time_shares_it() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, ms(10))
    builder.kernel("long_kernel", 0, ms(10), stream=1)
    builder.kernel("short_kernel", ms(4), ms(9), stream=2)
    # 15 ms of work in 10 ms: two thirds and one third of them.
    assert named(Signals(run_of(builder.build()))) == [("long_kernel", False, 6)]


def test_communication_has_only_its_exposed_time() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.kernel("gemm", 0, ms(6), stream=1)
    builder.collective("ncclAllReduce", ms(2), ms(10), stream=2)
    assert named(Signals(run_of(builder.build()))) == [("gemm", False, 6)]
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.kernel("gemm", 0, ms(4), stream=1)
    builder.collective("ncclAllReduce", ms(2), ms(10), stream=2)
    assert named(Signals(run_of(builder.build()))) == [("ncclAllReduce", False, 6)]


@pytest.mark.parametrize("order", [("a_kernel", "b_kernel"), ("b_kernel", "a_kernel")])
def test_of_equal_times_the_name_decides(order: tuple[str, str]) -> None:
    # Formats store names in different orders.
    builder = TraceBuilder()
    builder.step(0, 0, ms(10))
    for place, name in enumerate(order):
        builder.kernel(name, ms(5 * place), ms(5 * place + 5))
    assert named(Signals(run_of(builder.build())))[0] == ("a_kernel", False, 5)


def test_what_was_not_recorded_has_its_cause_s_name() -> None:
    builder = TraceBuilder()
    builder.step(0, 0, ms(10))
    builder.kernel("kernel", ms(8), ms(10))
    assert named(Signals(run_of(builder.build())))[0] == ("Unexplained", True, 8)


def test_needs_are_known_from_shapes() -> None:
    drawing = """
        cell 1ms
        step   |..........|..........|
        main   |vSSSSSSSSS|vSSSSSSSSS|
        gpu 7  |HHHHHHHHHH|HHHHHHHHHH|
    """
    legend = {
        "v": operator(
            "aten::mm", shapes="[[8192,8192],[8192,8192]]", dtypes="c10::BFloat16;c10::BFloat16"
        )
    }
    (product,) = costliest_work(Signals(run_of(draw(drawing, legend=legend, device=H100))))
    # 2 x 8192^3 FLOP at 0.90 of 989.4 TFLOP/s take 1.23 ms; waves and writes add a few percent.
    assert product.achieved_share == pytest.approx(0.126, abs=0.005)
    assert product.bound == "compute"


def test_communication_of_hosts_has_its_causes_name() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.operator("aten::mm", 0, ms(4), launches=False)
    builder.collective("gloo:all_reduce", ms(4), ms(10), thread="main")
    assert named(Signals(run_of(builder.build()))) == [("Exposed communication", False, 6)]
