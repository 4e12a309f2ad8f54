"""Profiles of TPUs, operation by operation, beside XProf's tools.

Where the two disagree, docs/accuracy.md says who is right and why.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.ingest.xspace.reader import read_xplane
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.signals.work.roofline import BOUNDS, roofline
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import Source, Trace
from tests.corpus.test_xla_profiles import training

TOOLS = ("hlo_stats", "op_profile", "memory_profile", "overview_page")
# XProf writes its own log to stderr, and files beside the profile.
_CALL = """
import json, sys
from xprof.convert import raw_to_tool_data as xprof
path, *tools = sys.argv[1:]
found = {}
for tool in tools:
    data, _ = xprof.xspace_to_tool_data([path], tool, {"use_saved_result": False})
    found[tool] = json.loads(data)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """A copy of XProf's own test profile of four chips of a TPU v6e."""
    found = corpus / "xprof-test/plugins/profile/tpu_inference_2_2cc1243f/host.xplane.pb"
    path = tmp_path_factory.mktemp("xprof") / "host.xplane.pb"
    shutil.copy(found, path)
    return path


@pytest.fixture(scope="module")
def tools(profile: Path) -> dict[str, Any]:
    """What XProf's tools say of it."""
    pytest.importorskip("xprof")
    command = [sys.executable, "-c", _CALL, str(profile), *TOOLS]
    result = subprocess.run(command, capture_output=True, check=True, timeout=300)
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.fixture(scope="module")
def trace(profile: Path) -> Trace:
    with profile.open("rb") as stream:
        return read_xplane(stream, Source(path=str(profile), format="xplane", framework="jax"))


def table(tool: Any) -> list[dict[str, Any]]:
    """The rows of one of XProf's tables, by label."""
    labels = [column["label"] for column in tool["cols"]]
    return [
        dict(zip(labels, (cell.get("v") for cell in row["c"]), strict=True)) for row in tool["rows"]
    ]


def totals(trace: Trace) -> dict[str, tuple[int, int, float, str]]:
    """Executions, total time in ns, bytes and category of each operation, over all cores."""
    op, size = trace.hlo_events.op, len(trace.hlo.name)
    duration_ns = trace.events.duration_ns[trace.hlo_events.row]
    total_ns = np.bincount(op, weights=duration_ns, minlength=size)
    count = np.bincount(op, minlength=size)
    return {
        trace.text(int(trace.hlo.name[row])): (
            int(count[row]),
            int(total_ns[row]),
            float(trace.hlo.traffic_bytes[row]),
            trace.text(int(trace.hlo.category[row])),
        )
        for row in range(size)
    }


def test_each_operation_takes_what_hlo_stats_says(tools: dict[str, Any], trace: Trace) -> None:
    found, rows = totals(trace), table(tools["hlo_stats"])
    assert {row["HLO op name"] for row in rows} == set(found)
    for row in rows:
        count, total_ns, _, category = found[row["HLO op name"]]
        assert count == row["#Occurrences"]
        assert category == row["HLO op category"]
        # XProf sums picoseconds, and each execution is rounded to nanoseconds here.
        assert total_ns == pytest.approx(row["Total self time (us)"] * 1e3, abs=count)


def test_operations_that_compute_move_the_bytes_of_hlo_stats(
    tools: dict[str, Any], trace: Trace
) -> None:
    found, checked = totals(trace), 0
    for row in table(tools["hlo_stats"]):
        # Of copies between the device and the host, XProf's table counts all bytes for both halves,
        # and in both memories; its own breakdown of memories, and this package, count each once.
        if row["HLO op category"] not in ("copy-start", "copy-done"):
            count, _, size_bytes, _ = found[row["HLO op name"]]
            total_us = row["Total self time (us)"]
            stated = row["HBM BW (GiB/s)"] * 2**30 * total_us / 1e6 / count
            assert size_bytes == pytest.approx(stated, rel=1e-6)
            checked += 1
    assert checked == 5  # three fusions, the all-reduce and the broadcast


def test_programs_take_what_op_profile_says(tools: dict[str, Any], trace: Trace) -> None:
    by_module: dict[str, int] = defaultdict(int)
    for op, row in zip(trace.hlo_events.op.tolist(), trace.hlo_events.row.tolist(), strict=True):
        by_module[trace.text(int(trace.hlo.module[op]))] += int(trace.events.duration_ns[row])
    stated = {
        program["name"]: program["metrics"]["rawTime"] / 1e3
        for program in tools["op_profile"]["byProgram"]["children"]
        if program["name"] != "IDLE"
    }
    assert by_module == pytest.approx(stated, rel=1e-7)


def test_memory_is_as_full_as_memory_profile_says(tools: dict[str, Any], trace: Trace) -> None:
    signals = Signals(run_of(trace))
    memory, core = signals.memory, str(signals.device.index)
    stated = tools["memory_profile"]["memoryProfilePerAllocator"][core]["profileSummary"]
    assert memory is not None
    assert memory.capacity_bytes == int(stated["memoryCapacity"])
    assert memory.peak_allocated_bytes == int(stated["peakStats"]["peakBytesInUse"])


def test_steps_are_known_where_xprof_measures_none(tools: dict[str, Any], trace: Trace) -> None:
    (texts,) = (
        part["p"]["statement"]
        for part in tools["overview_page"]
        if "statement" in part.get("p", {})
    )
    assert texts.startswith("No step time measured.")
    signals = Signals(run_of(trace))
    # The program runs again and again: 400 / 4 cores = 100 times on each.
    assert signals.steps.source == "repeats of the XLA module jit_f"
    assert len(signals.steps) == 100
    # What XProf calls bound by HBM waits for the host: the arrays are in memory space 5.
    assert signals.attribution.share(Cause.COPIES) == pytest.approx(0.97, abs=0.005)


def test_what_bounds_each_operation_of_a_real_training(corpus: Path) -> None:
    path = corpus / "xprof-golden/data_tpu-training_roofline_model_tpu_training.json.gz"
    document = json.loads(gzip.decompress(path.read_bytes()))
    rows = table(document[0] if isinstance(document, list) else document)
    stated = {row["Operation"]: row["Bound by"] for row in rows if row["Step"] == "Total"}
    trace = training(corpus)
    found = roofline(Signals(run_of(trace)))
    agreed_ns = compared_ns = 0
    for row, bound in zip(found.rows.tolist(), found.bound.tolist(), strict=True):
        names = {"compute": "Compute", "memory": "HBM"}
        ours, theirs = names.get(BOUNDS.get(bound, "")), stated.get(trace.name(row))
        if ours is not None and theirs in ("Compute", "HBM"):
            compared_ns += int(trace.events.duration_ns[row])
            agreed_ns += int(trace.events.duration_ns[row]) if ours == theirs else 0
    # The rest of the 3.9 s are collectives, which have another link. All but the three megacore
    # fusions agree, 79 ms: the reader knows the products in them by their FLOP, but this trace is
    # made from the texts of the table.
    assert compared_ns == pytest.approx(2.834e9, rel=1e-3)
    assert compared_ns - agreed_ns == pytest.approx(78.7e6, rel=1e-3)
