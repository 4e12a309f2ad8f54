"""The first lines name what takes most of the time, whatever else a report says."""

from __future__ import annotations

import gzip
import json
from bisect import bisect_right
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from tb_perfadvisor.trace.names import short_name
from tests.support.night import IS_NIGHT

MOST_BYTES = 4_000_000 if IS_NIGHT else 1_000_000
"""Larger files take seconds to read by the standard library."""


def events_of(path: Path) -> list[dict[str, Any]]:
    is_packed = path.read_bytes()[:2] == b"\x1f\x8b"  # whatever the name says
    with gzip.open(path) if is_packed else path.open("rb") as file:
        trace = json.load(file, strict=False)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    return [event for event in events if "dur" in event]


WRAPPERS = (
    "record_param_comms", "CompiledFunction", "Torch-Compiled Region", "torch::autograd::",
    "autograd::engine", "## Call CompiledFxGraph", "cudaGraph",
)  # fmt: skip
"""Operators that launch whatever was compiled, captured or given to a library."""


def device_time(path: Path) -> Counter[str]:
    """Time of kernels by the innermost `cpu_op` around their launch, or else by their own name."""
    operators, launches, kernels = defaultdict(list), {}, []
    for event in events_of(path):
        category = str(event.get("cat", "")).lower()
        correlation = event.get("args", {}).get("correlation")
        if category in ("cpu_op", "operator"):
            operators[event.get("tid")].append(
                (event["ts"], event["ts"] + event["dur"], event["name"])
            )
        elif category in ("cuda_runtime", "cuda_driver", "runtime"):
            launches[correlation] = event.get("tid"), event["ts"]
        elif category == "kernel":
            kernels.append((correlation, event["dur"], event["name"]))
    for found in operators.values():
        found.sort()
    total: Counter[str] = Counter()
    for correlation, duration, kernel in kernels:
        tid, ts = launches.get(correlation, (None, 0))
        started = operators.get(tid, [])
        last = bisect_right(started, (ts, float("inf"), "")) - 1
        around = (started[index] for index in range(last, max(last - 200, -1), -1))
        operator = next((name for _, end, name in around if end >= ts), kernel)
        total[short_name(kernel if operator.startswith(WRAPPERS) else operator)] += duration
    return total


def test_the_costliest_operator_is_named(
    corpus: Path, corpus_reports: list[dict[str, Any]]
) -> None:
    unnamed, count = [], 0
    for report in corpus_reports:
        if report["run"].startswith("derived-malformed"):
            continue
        path = corpus / report["workers"][0]["file"]
        if len(report["workers"]) > 1 or not path.name.endswith(("trace.json", "trace.json.gz")):
            continue
        if path.stat().st_size > MOST_BYTES or not (total := device_time(path)):
            continue
        count += 1
        # The used steps are a part of the recording, so neighbors may change places.
        costliest = {name for name, time in total.items() if time > 0.7 * max(total.values())}
        named = {work["name"] for work in report["overview"]["costliest"]}
        if not costliest & named:
            unnamed.append((report["run"], total.most_common(2), sorted(named)))
    assert count >= (40 if IS_NIGHT else 30)
    assert unnamed == []
