from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of


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
