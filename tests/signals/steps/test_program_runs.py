from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.steps.around_steps import program_runs
from tb_perfadvisor.testing import TraceBuilder, ms, run_of


def test_runs_that_begin_in_the_used_window_count() -> None:
    builder = TraceBuilder("jax").step(0, ms(2), ms(6)).step(1, ms(6), ms(10))
    for start in (0, 2, 6, 10):
        builder.derived("modules", "jit_step(1)", ms(start), ms(start + 2))
        builder.xla_op("fusion", ms(start), ms(start + 2))
    signals = Signals(run_of(builder.build()))
    assert (signals.steps.window_start_ns, signals.steps.window_end_ns) == (ms(2), ms(10))
    runs = program_runs(signals)
    assert (runs.start_ns.tolist(), runs.end_ns.tolist()) == ([ms(2), ms(6)], [ms(4), ms(8)])
