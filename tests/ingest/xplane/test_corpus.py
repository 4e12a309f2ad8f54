"""Real profiles against numbers of others: XProf 2.24.2's own tools, and TensorFlow's classes."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import random
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_schema import TENSORFLOW_CHECK

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.ingest.xplane.reader import looks_like_xplane, read_xplane
from tb_perfadvisor.trace import EventKind, Source, Trace, TrackKind

CORPUS = Path(os.environ.get("PERFADVISOR_CORPUS", ""))
pytestmark = [
    pytest.mark.corpus,
    pytest.mark.skipif(
        "PERFADVISOR_CORPUS" not in os.environ, reason="PERFADVISOR_CORPUS is not set"
    ),
]


def data_of(pattern: str) -> bytes:
    (path,) = CORPUS.glob(f"{pattern}/plugins/profile/*/*.xplane.pb")
    return path.read_bytes()


def read(pattern: str) -> Trace:
    return read_xplane(io.BytesIO(data_of(pattern)), Source(path=pattern, format=""))


def expected(name: str, tool: str) -> Any:
    return json.loads((CORPUS / "expected" / "xprof-2.24.2" / f"{name}.{tool}.json").read_text())


def table(document: Any) -> list[dict[str, Any]]:
    keys = [column["id"] for column in document["cols"]]
    return [
        dict(zip(keys, (cell and cell["v"] for cell in row["c"]), strict=False))
        for row in document["rows"]
    ]


def device_work(trace: Trace) -> list[int]:
    wanted = (EventKind.KERNEL, EventKind.COPY, EventKind.MEMSET, EventKind.COLLECTIVE)
    return trace.rows(*wanted).tolist()


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        ("tracelens-jax/jax08_attention", "tracelens-jax_jax08_attention__2025_01_01"),
        ("tracelens-jax/jax08_conv", "tracelens-jax_jax08_conv__2025_01_01"),
        (
            "tracelens-jax/test_data_jax_te_fused_attn_categorization",
            "tracelens-jax_test_data_jax_te_fused_attn_categorization__2025_01_01",
        ),
    ],
)
def test_totals_per_kernel_are_xprofs(pattern: str, name: str) -> None:
    wanted: Counter[str] = Counter()
    for row in table(expected(name, "kernel_stats")):
        wanted[row["kernel_name"]] += round(row["total_duration_us"] * 1000)
    trace = read(pattern)
    found: Counter[str] = Counter()
    for row in device_work(trace):
        found[trace.name(row)] += int(trace.events.duration_ns[row])
    assert found == wanted


def test_every_kernel_of_a_jax_gpu_profile_has_its_launch() -> None:
    trace = read("tracelens-jax/jax08_conv")
    rows = device_work(trace)
    assert len(rows) == 235
    assert (trace.events.launched_by[rows] >= 0).all()
    # Eight threads, one for each MI300X, launch 25 kernels each (two of the first are missing
    # from the file); what they launch lies inside their own execution.
    threads = Counter(
        trace.text(int(trace.tracks.label[trace.events.track[row]]))
        for row in trace.rows(EventKind.LAUNCH).tolist()
    )
    executing = [count for name, count in threads.items() if name.startswith("py_xla_execute/")]
    assert sorted(executing) == [23, 25, 25, 25, 25, 25, 25, 25]


def test_memory_in_use_is_xprofs() -> None:
    trace = read("tracelens-jax/jax08_attention")
    profile = expected("tracelens-jax_jax08_attention__2025_01_01", "memory_profile")
    snapshots = profile["memoryProfilePerAllocator"]["GPU_0_bfc"]["sampledTimelineSnapshots"]
    wanted = {int(item["aggregationStats"]["heapAllocatedBytes"]) for item in snapshots}
    on_device = trace.memory.device == 0
    assert set(trace.memory.allocated_bytes[on_device].tolist()) == wanted


def test_tpu_idle_share_is_xprofs() -> None:
    # XProf: device_idle_time_percent 13.4, the mean over the four cores of what their op line
    # leaves uncovered between its first start and its last end.
    trace = read("xprof-test")
    shares = []
    for track in np.flatnonzero(trace.tracks.kind == TrackKind.DEVICE_STREAM):
        mine = trace.events.track == track
        start, end = trace.events.start_ns[mine], trace.events.end_ns[mine]
        shares.append(1 - (end - start).sum() / (end.max() - start.min()))
    assert len(shares) == 4
    assert 100 * np.mean(shares) == pytest.approx(13.4, abs=0.05)


def test_totals_per_tpu_operation_are_xprofs() -> None:
    trace = read("xprof-test")
    wanted = {
        (row["program_id"], row["hlo_op_name"]): (row["occurrences"], row["total_time"])
        for row in table(expected("xprof-test__tpu_inference_2_2cc1243f", "hlo_stats"))
        if row["hlo_op_name"] != "IDLE"
    }
    found: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    for row, op in zip(trace.hlo_events.row.tolist(), trace.hlo_events.op.tolist(), strict=True):
        program = trace.text(int(trace.hlo.module[op])).rpartition("(")[2].rstrip(")")
        key = (program, trace.text(int(trace.hlo.name[op])))
        found[key] += int(trace.events.duration_ns[row])
        counts[key] += 1
    assert wanted.keys() <= found.keys()
    for key, (occurrences, total_us) in wanted.items():
        assert counts[key] == occurrences, key
        # Each event is rounded to whole nanoseconds.
        assert found[key] == pytest.approx(total_us * 1000, abs=occurrences), key


def test_tpu_operations_know_the_call_that_launched_them() -> None:
    trace = read("xprof-test")
    modules = trace.rows(EventKind.DEVICE_MODULE)
    launched_by = trace.events.launched_by[modules]
    assert (launched_by >= 0).all()
    assert {trace.name(int(row)) for row in launched_by} == {"DoEnqueueProgram"}
    assert (trace.events.start_ns[launched_by] <= trace.events.start_ns[modules]).all()


@pytest.mark.parametrize(
    ("pattern", "name", "step_ms"),
    [
        ("local-jax-cpu/train_steps", "train_steps__2026_11_21_02_01_33", "14.4"),
        (
            "local-jax-cpu/train_steps_host_bound",
            "train_steps_host_bound__2026_11_21_02_01_34",
            "41.4",
        ),
    ],
)
def test_step_times_are_xprofs(pattern: str, name: str, step_ms: str) -> None:
    page = expected(f"local-jax-cpu_{name}", "overview_page")
    averages = [
        part["p"]["steptime_ms_average"]
        for part in page
        if "steptime_ms_average" in part.get("p", {})
    ]
    assert averages == [step_ms]
    trace = read(pattern)
    steps = trace.rows(EventKind.STEP)
    assert trace.events.step[steps].tolist() == [0, 1, 2, 3, 4, 5]
    # XProf leaves out the first and the last step.
    mean_ns = trace.events.duration_ns[steps][1:-1].mean()
    assert f"{mean_ns / 1e6:.1f}" == step_ms


def test_keras_steps_are_found_and_wait_for_input() -> None:
    # By hand from the events: IteratorGetNext covers 79.1 % of the five `Profiled batch` steps.
    trace = read("local-tf-cpu/keras_slow_input/train")
    steps = trace.rows(EventKind.STEP)
    assert trace.events.step[steps].tolist() == [3, 4, 5, 6, 7]
    waits = trace.rows(EventKind.INPUT_WAIT)
    share = trace.events.duration_ns[waits].sum() / trace.events.duration_ns[steps].sum()
    assert share == pytest.approx(0.791, abs=0.0005)
    assert trace.source.framework == "tensorflow"


def test_an_old_tensorflow_gpu_profile() -> None:
    # XProf's golden covers two hosts, whose files are one and the same: half of it is ours.
    path = next((CORPUS / "xprof-demo").glob("**/GPU-multi-worker/*.xplane.pb"))
    trace = read_xplane(io.BytesIO(path.read_bytes()), Source(path="", format=""))
    kernels = trace.rows(EventKind.KERNEL)
    total_us = sum(
        row["total_duration_us"]
        for row in table(expected("xprof-demo__GPU-multi-worker", "kernel_stats"))
    )
    assert trace.events.duration_ns[kernels].sum() == pytest.approx(total_us / 2 * 1000, abs=50)
    assert len(trace.devices) == 8
    assert {device.name for device in trace.devices} == {"Tesla V100-SXM2-16GB"}
    assert trace.events.duration_ns[trace.rows(EventKind.DEVICE_STEP)].max() < 21_400_000
    assert trace.source.origin_unix_ns is None


@pytest.mark.parametrize(
    ("pattern", "framework", "version"),
    [
        ("local-jax-cpu/train_dp4_sharded", "jax", "0.10.2"),
        ("tracelens-jax/jax08_attention", "jax", ""),
        ("xprof-test", "jax", ""),
        ("local-tf-cpu/custom_loop_trace_steps", "tensorflow", ""),
    ],
)
def test_framework(pattern: str, framework: str, version: str) -> None:
    source = read(pattern).source
    assert (source.framework, source.version) == (framework, version)


def test_garbage_is_refused() -> None:
    data = data_of("derived-malformed/xplane_garbage")
    assert not looks_like_xplane(data[:512])
    with pytest.raises(UnreadableProfileError):
        read_xplane(io.BytesIO(data), Source(path="", format=""))


@pytest.mark.parametrize(
    "pattern", ["local-tf-cpu/custom_loop_trace_steps", "tracelens-jax/jax08_attention"]
)
def test_damaged_copies_raise_nothing_but_our_errors(pattern: str) -> None:
    whole = data_of(pattern)
    chance = random.Random(7)
    for _ in range(40):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 30)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        cut = chance.randint(0, len(damaged)) if chance.random() < 0.3 else len(damaged)
        with suppress(PerfAdvisorError):
            read_xplane(io.BytesIO(bytes(damaged[:cut])), Source(path="", format=""))


@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow") is None, reason="tensorflow is not installed"
)
def test_agrees_with_tensorflows_own_classes() -> None:
    (path,) = CORPUS.glob("local-jax-cpu/train_dp4_sharded/plugins/profile/*/*.xplane.pb")
    done = subprocess.run(
        [sys.executable, "-c", TENSORFLOW_CHECK, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    # The corpus's index has 10051 events for this file.
    assert done.stdout.strip().endswith("events 10051")
