from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.attribution import KernelTotal
from tb_perfadvisor.testing import TraceBuilder, draw, ms, run_of


def test_kernels_are_ordered_by_time() -> None:
    # Four runs of K take 1 + 2 + 1 + 1 cells, one of H two. Copies and collectives are not compute.
    trace = draw(
        """
        cell 1ms
        step   |.....|.....|
        gpu 7  |KHHKK|K.K.h|
        gpu 20 |.....|NNN..|
        """
    )
    sgemm, hopper = Signals(run_of(trace)).kernels
    assert sgemm == KernelTotal("ampere_sgemm_128x64_nn", "matmul", 4, ms(5))
    assert (hopper.count, hopper.total_ns) == (1, ms(2))


def test_time_is_clipped_to_the_used_window() -> None:
    # The step ends at 5 ms: it contains 5 of the first kernel's 12 ms, and none of the second.
    builder = TraceBuilder().step(0, 0, ms(5))
    builder.kernel("long", ms(0), ms(12)).kernel("late", ms(12), ms(13))
    (total,) = Signals(run_of(builder.build())).kernels
    assert (total.name, total.count, total.total_ns) == ("long", 1, ms(5))


def test_totals_by_operation_of_one_core() -> None:
    builder = TraceBuilder("jax")
    for start in (0, 10, 20):
        builder.xla_op("fusion.1", ms(start), ms(start + 3))
        builder.xla_op("copy.2", ms(start + 4), ms(start + 9))
    builder.xla_op("copy.2", ms(0), ms(9), tpu=1)  # on another core, which does less
    trace = builder.build()
    totals = Signals(run_of(trace)).hlo
    names = [trace.text(int(name)) for name in trace.hlo.name[totals.op]]
    assert names == ["copy.2", "fusion.1"]
    assert totals.count.tolist() == [3, 3]
    assert totals.total_ns.tolist() == [ms(15), ms(9)]
