"""HolisticTraceAnalysis 0.5.0, under its definitions.

- With several `ProfilerStep`s it keeps the device work that was launched before the last one
  starts; with one step or none it keeps all.
- Starts are rounded up and ends down to whole microseconds.
- *Kernel time* runs from the first start to the last end. *Idle* is the part that no event covers,
  *compute* what kernels cover that are no collectives, *non-compute* the rest: copies, memsets
  and collectives that no compute hides.
- *Overlap* is the share of the collectives' time that compute covers.
- Per stream, the gap before an event is *host wait* if it was launched after the event before it
  had ended, else *kernel wait* below 30 µs (it says ns), else *other*.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Trace
from tb_perfadvisor.trace.intervals import Intervals, intersect, total_ns, union
from tb_perfadvisor.trace.tables import Int32, Int64
from tests.support.corpus_traces import read

# Key of the expected numbers, position of the rank in them, file.
CASES = [
    ("hta/trace_filter", 0, "hta/trace_filter/sampled_rank-0.json.gz"),
    ("hta/trace_filter", 1, "hta/trace_filter/sampled_rank-1.json.gz"),
    ("hta/trace_diff_control", 0, "hta/trace_diff_control/*.gz"),
    ("hta/trace_diff_test", 0, "hta/trace_diff_test/*.gz"),
    ("hta/nccl_parser_config", 0, "hta/nccl_parser_config/*/*.gz"),
    ("hta/negative_queue", 0, "hta/negative_queue_length_values_check/*/*.gz"),
    ("kineto/num_workers_0_a", 0, "kineto/resnet50_num_workers_0/*.gz"),
    ("kineto/num_workers_4_a", 0, "kineto/resnet50_num_workers_4/*.gz"),
    ("tracelens/h100/owlv2", 0, "tracelens/h100/google_owlv2-large-patch14-ensemble/*.gz"),
]
cases = pytest.mark.parametrize(
    ("key", "position", "pattern"), CASES, ids=[f"{key}-{rank}" for key, rank, _ in CASES]
)


class Kept:
    """The device work that it looks at, in its microseconds."""

    def __init__(self, trace: Trace) -> None:
        events = trace.events
        steps = trace.rows(EventKind.STEP)
        rows = trace.rows(*BUSY_KINDS)
        if steps.size > 1:
            rows = rows[events.launched_by[rows] >= 0]
            rows = rows[events.start_ns[events.launched_by[rows]] < events.start_ns[steps].max()]
        assert trace.source.origin_unix_ns is not None
        within_ns = trace.source.origin_unix_ns % 1000
        self.rows: Int32 = rows
        self.start_us: Int64 = -(-(events.start_ns + within_ns) // 1000)
        self.end_us: Int64 = (events.end_ns + within_ns) // 1000

    def covered(self, rows: Int32) -> Intervals:
        return union(self.start_us[rows], self.end_us[rows])


def expected(corpus: Path, key: str) -> Any:
    return json.loads((corpus / "expected/hta-0.5.0.json").read_text())[key]


@cases
def test_the_temporal_breakdown_is_htas(
    corpus: Path, key: str, position: int, pattern: str
) -> None:
    wanted = expected(corpus, key)["temporal"][position]
    trace = read(corpus, pattern)
    kept = Kept(trace)
    compute = kept.covered(kept.rows[trace.events.kind[kept.rows] == EventKind.KERNEL])
    kernel_us = int(kept.end_us[kept.rows].max() - kept.start_us[kept.rows].min())
    idle_us = kernel_us - total_ns(kept.covered(kept.rows))
    found = {
        "kernel_time(us)": kernel_us,
        "idle_time(us)": idle_us,
        "compute_time(us)": total_ns(compute),
        "non_compute_time(us)": kernel_us - idle_us - total_ns(compute),
    }
    # What ends before it starts, once both are rounded, counts -1 in its sums.
    negative = int((kept.end_us < kept.start_us)[kept.rows].sum())
    assert found == pytest.approx({key: wanted[key] for key in found}, rel=0, abs=negative)


@cases
def test_the_overlap_is_htas(corpus: Path, key: str, position: int, pattern: str) -> None:
    wanted_percent = expected(corpus, key)["overlap"][position]["comp_comm_overlap_pctg"]
    trace = read(corpus, pattern)
    kept = Kept(trace)
    kinds = trace.events.kind[kept.rows]
    compute = kept.covered(kept.rows[kinds == EventKind.KERNEL])
    collectives = kept.covered(kept.rows[kinds == EventKind.COLLECTIVE])
    if math.isnan(wanted_percent):
        assert len(collectives) == 0
    else:
        share = total_ns(intersect(collectives, compute)) / total_ns(collectives)
        assert 100 * share == pytest.approx(wanted_percent, abs=0.005001)  # two digits are given


@cases
def test_the_idle_time_of_streams_is_htas(
    corpus: Path, key: str, position: int, pattern: str
) -> None:
    document = expected(corpus, key)
    rank = document["temporal"][position]["rank"]
    wanted_us = {
        (row["stream"], row["idle_category"]): row["idle_time"]
        for row in document["idle"]
        if row["rank"] == rank
    }
    trace = read(corpus, pattern)
    kept = Kept(trace)
    stream_of = trace.tracks.thread[trace.events.track[kept.rows]]
    found_us: dict[tuple[int, str], int] = {}
    for stream in np.unique(stream_of):
        rows = kept.rows[stream_of == stream]
        before, after = rows[:-1], rows[1:]
        gap_us = kept.start_us[after] - kept.end_us[before]
        launch = trace.events.launched_by[after]
        is_host = (launch >= 0) & (kept.start_us[launch] > kept.end_us[before])
        is_kernel = ~is_host & (gap_us < 30)
        parts = {"host_wait": is_host, "kernel_wait": is_kernel, "other": ~is_host & ~is_kernel}
        found_us |= {
            (int(stream), category): int(gap_us[mask].sum()) for category, mask in parts.items()
        }
    # HTA counts it as negative idle time that an event ends after the next of its stream begins.
    # Such an event is shortened here; the one in this trace overlaps the next by 11 µs.
    overlap_us = 11 if trace.soundness.shortened else 0
    assert sum(found_us[key] - wanted_us[key] for key in wanted_us) == overlap_us
    different = {key for key in wanted_us if found_us[key] != wanted_us[key]}
    assert len(different) == (1 if overlap_us else 0)
    # It leaves out categories that no gap has.
    assert {key for key, us in found_us.items() if us} <= wanted_us.keys()
