"""The ranks that scaling is measured with are unlike in what they are said to be."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import uneven_ranks
from tb_perfadvisor import load
from tb_perfadvisor.signals import Signals, ranks_of
from tb_perfadvisor.signals.ranks.stragglers import lateness
from tb_perfadvisor.trace import EventKind

DEMO_LOGS = Path(__file__).parents[2] / "demo_logs"
(ON_GPU,) = DEMO_LOGS.glob("synthetic_gpu_allreduce_8rank/rank0.*.json.gz")
COUNT = 6


def test_clocks_differ_and_one_comes_late(tmp_path: Path) -> None:
    files = uneven_ranks.write(ON_GPU, tmp_path / "run", COUNT)
    assert [file.name.partition(".")[0] for file in files] == [f"rank{n}" for n in range(COUNT)]
    (late,) = uneven_ranks.late_ranks(COUNT)
    (run,) = load(tmp_path / "run")
    assert [trace.source.world_size for trace in run.traces] == [COUNT] * COUNT
    signals = Signals(run)
    found = lateness(signals)
    assert found is not None
    assert found.late == (late,)
    # The late one waits for nobody: its collectives are as they were recorded.
    (recorded,) = load(ON_GPU)
    rows = recorded.traces[0].rows(EventKind.COLLECTIVE)
    late_rows = run.traces[late].rows(EventKind.COLLECTIVE)
    durations = [
        trace.events.duration_ns[of]
        for trace, of in ((recorded.traces[0], rows), (run.traces[late], late_rows))
    ]
    assert durations[0].tolist() == durations[1].tolist()
    # Everyone else comes some 3 ms earlier, and waits.
    other = run.traces[(late + 1) % COUNT]
    waits_ns = other.events.duration_ns[other.rows(EventKind.COLLECTIVE)] - durations[0]
    assert (np.abs(waits_ns - 3_000_000) < 500_000).all()
    # Wall clocks are apart by up to four seconds, and collectives bring them together.
    clocks = ranks_of(signals).clocks
    assert clocks.skew_is_known
    assert 1_000_000_000 < np.ptp(clocks.skew_ns) < 4_000_000_000
    assert np.ptp(clocks.begin_ns) == 0
