"""Device work by call site, as evidence shows it."""

from __future__ import annotations

from tb_perfadvisor.rules.evidence.device_work import work_by_call_site
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.testing import TraceBuilder, ms, run_of


def test_operations_of_two_programs_with_one_name_are_two_sites() -> None:
    builder = TraceBuilder("jax").device("TPU v5e", kind="tpu").step(0, 0, ms(10))
    builder.xla_op("fusion.1", 0, ms(2), source_line="loss.py:3")
    builder.xla_op("fusion.1", ms(2), ms(5), source_line="model.py:12")
    builder.xla_op("fusion.1", ms(5), ms(9), source_line="model.py:12")
    signals = Signals(run_of(builder.build()))
    rows = signals.device.rows
    table = work_by_call_site("", signals, rows, signals.trace.events.duration_ns[rows])
    assert [row[3:] for row in table.rows] == [("model.py:12", 2, ms(7)), ("loss.py:3", 1, ms(2))]
