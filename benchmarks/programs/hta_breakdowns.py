"""HolisticTraceAnalysis on Kineto traces: load, temporal and idle breakdown, overlap."""

import json
import sys
from time import perf_counter

_began = perf_counter()

from hta.trace_analysis import TraceAnalysis  # noqa: E402 - importing is timed

_imported = perf_counter()
analysis = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])))
temporal = analysis.get_temporal_breakdown(visualize=False)
idle = analysis.get_idle_time_breakdown(ranks=list(range(len(sys.argv) - 1)), visualize=False)
overlap = analysis.get_comm_comp_overlap(visualize=False)
print(json.dumps({"imports_s": _imported - _began, "work_s": perf_counter() - _imported}))
