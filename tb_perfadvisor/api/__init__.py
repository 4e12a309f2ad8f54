"""The engine in Python: load, analyze, compare.

>>> from tb_perfadvisor import analyze, compare
>>> report = analyze("runs/resnet50")
>>> report.findings[0].title
>>> compare("runs/resnet50", "runs/resnet50_workers").targets[0].headline
"""

from tb_perfadvisor.api.analyses import (
    analyze,
    analyze_all,
    analyze_below,
    analyze_capture,
    analyze_captures,
    load,
    nothing_found,
    only_capture_of,
)
from tb_perfadvisor.api.comparisons import (
    compare,
    compare_found,
    facts_of_all,
    history_of,
    logged_of,
    with_distinct_names,
    with_scalars,
)
from tb_perfadvisor.api.training import describe_runs, with_whole_runs

__all__ = [
    "analyze",
    "analyze_all",
    "analyze_below",
    "analyze_capture",
    "analyze_captures",
    "compare",
    "compare_found",
    "describe_runs",
    "facts_of_all",
    "history_of",
    "load",
    "logged_of",
    "nothing_found",
    "only_capture_of",
    "with_distinct_names",
    "with_scalars",
    "with_whole_runs",
]
