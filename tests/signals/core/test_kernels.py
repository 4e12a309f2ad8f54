from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.kernels import KernelTotal
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
