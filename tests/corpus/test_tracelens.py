"""TraceLens' own reports of its test traces, under its definitions.

It looks at the device work that something launched: kernels, copies and memsets whose launch the
trace does not hold are left out. Time is of the span from the first such event to the last. Copies
are *exposed* where neither a kernel nor a memset runs.
"""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Trace
from tb_perfadvisor.trace.intervals import minus, total_ns
from tb_perfadvisor.trace.tables import Int32
from tests.support.corpus_traces import covered, read

TRACES = {
    "h100/Falconsai_nsfw_image_detection": "h100/Falconsai_nsfw_image_detection*",
    "h100/Qwen_Qwen1.5-0.5B-Chat": "h100/Qwen_Qwen1.5-0.5B-Chat*",
    "h100/facebook_timesformer-base-finetuned-k400": "h100/facebook_timesformer*",
    "h100/gaunernst_bert-small-uncased": "h100/gaunernst_bert-small-uncased*",
    "h100/google_owlv2-large-patch14-ensemble": "h100/google_owlv2-large-patch14-ensemble*",
    "mi210/gpu_only_trace/d1472ed2": "mi210/gpu_only_trace/*",
    "torch_compile_triton": "torch_compile_triton/*",
}


def launched(trace: Trace) -> Int32:
    rows = trace.rows(*BUSY_KINDS)
    return rows[trace.events.launched_by[rows] >= 0]


def table(corpus: Path, folder: str, name: str) -> list[dict[str, str]]:
    (path,) = (corpus / "expected/tracelens").glob(f"{folder}/{name}")
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


@pytest.mark.parametrize(("name", "expected"), TRACES.items(), ids=TRACES)
def test_the_timeline_is_tracelens(corpus: Path, name: str, expected: str) -> None:
    wanted_ms = {
        row["type"]: float(row["time ms"]) for row in table(corpus, expected, "gpu_timeline.csv")
    }
    trace = read(corpus, f"tracelens/{name}/*.json.gz")
    rows = launched(trace)
    kinds = trace.events.kind[rows]
    busy = covered(trace, rows)
    is_copy, is_collective = kinds == EventKind.COPY, kinds == EventKind.COLLECTIVE
    copies = covered(trace, rows[is_copy])
    computing = covered(trace, rows[~is_copy & ~is_collective])
    span_ns = int(busy[-1, 1] - busy[0, 0])
    found_ns = {
        "computation_time": total_ns(computing),
        "exposed_memcpy_time": total_ns(minus(copies, computing)),
        "busy_time": total_ns(busy),
        "idle_time": span_ns - total_ns(busy),
        "total_time": span_ns,
        "total_comm_time": total_ns(covered(trace, rows[is_collective])),
        "total_memcpy_time": total_ns(copies),
    }
    # It adds in float64 of absolute microseconds: half a nanosecond for each of many kernels.
    assert {key: ns / 1e6 for key, ns in found_ns.items()} == pytest.approx(
        {key: wanted_ms[key] for key in found_ns}, abs=1e-4
    )


@pytest.mark.parametrize(
    ("pattern", "idle_percent"),
    [
        # Its figures as the corpus' INDEX.md has them.
        ("inference_sglang_decode/*/*.json.gz", 97.94),
        ("inference_xdit_sd_3.5/*/*.json.gz", 39.19),
    ],
)
def test_the_idle_share_is_tracelens(corpus: Path, pattern: str, idle_percent: float) -> None:
    trace = read(corpus, f"tracelens/{pattern}")
    busy = covered(trace, launched(trace))
    idle = 1 - total_ns(busy) / int(busy[-1, 1] - busy[0, 0])
    assert 100 * idle == pytest.approx(idle_percent, abs=0.006)


@pytest.mark.parametrize(("name", "expected"), TRACES.items(), ids=TRACES)
def test_every_kernel_and_its_operator_are_tracelens(
    corpus: Path, name: str, expected: str
) -> None:
    # `kernel_summary.csv` counts the kernels of each name, stream and nearest operator above the
    # launch, the ones without a launch among them; copies and memsets are not in it.
    rows = table(corpus, expected, "kernel_summary.csv")
    has_operators = "Parent cpu_op" in rows[0]
    wanted: Counter[tuple[str, str, int]] = Counter()
    wanted_us: defaultdict[tuple[str, str, int], float] = defaultdict(float)
    for row in rows:
        key = (row.get("Parent cpu_op", ""), row["Kernel name"], int(row["Kernel stream"]))
        wanted[key] += int(row["Kernel duration (µs)_count"])
        wanted_us[key] += float(row["Kernel duration (µs)_sum"])
    trace = read(corpus, f"tracelens/{name}/*.json.gz")
    found: Counter[tuple[str, str, int]] = Counter()
    found_us: defaultdict[tuple[str, str, int], float] = defaultdict(float)
    for kernel in trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE).tolist():
        operator = operator_above_launch(trace, kernel) if has_operators else ""
        stream = int(trace.tracks.thread[trace.events.track[kernel]])
        found[operator, trace.name(kernel), stream] += 1
        found_us[operator, trace.name(kernel), stream] += trace.events.duration_ns[kernel] / 1e3
    assert found == wanted
    assert dict(found_us) == pytest.approx(dict(wanted_us))


def operator_above_launch(trace: Trace, kernel: int) -> str:
    row = int(trace.events.launched_by[kernel])
    while row >= 0 and trace.events.kind[row] != EventKind.OPERATOR:
        row = int(trace.events.parent[row])
    return trace.name(row) if row >= 0 else ""
