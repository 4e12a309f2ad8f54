"""What an optimizer launches, one call for each parameter."""

from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.optimizer_loops import launched_in
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace.intervals import single


def test_a_range_owns_what_its_thread_launched_in_it() -> None:
    builder = TraceBuilder()
    for number in range(3):
        begin = 10 * number
        builder.step(number, ms(begin), ms(begin + 10))
        for thread, at, runs in (("main", 1, 6), ("main", 3, 8), ("loader", 2, 4)):
            key = f"{thread} {number} {at}"
            builder.launch(ms(begin + at), ms(begin + at) + 1_000, thread=thread, key=key)
            builder.kernel(key, ms(begin + runs), ms(begin + runs + 1), launched_by=key)
    signals = Signals(run_of(builder.build()))
    trace = signals.trace
    # From 11 to 12.5 ms: the main thread launches what runs at 16, the loader what runs at 14.
    rows = launched_in(signals, single(ms(11), ms(12) + ms(1) // 2))
    assert [trace.name(int(row)) for row in rows] == ["main 1 1"]
