"""Real profiles against numbers from the tools of XProf 2.24.2, and TensorFlow's classes."""

from __future__ import annotations

import io
import json
import random
from collections import Counter
from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor.errors import PerfAdvisorError, UnreadableProfileError
from tb_perfadvisor.hardware import identify
from tb_perfadvisor.ingest.xspace.reader import looks_like_xplane, read_xplane
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import launching_operator
from tb_perfadvisor.testing import run_of
from tb_perfadvisor.trace import EventKind, Source, Trace, TrackKind
from tests.support.corpus_traces import CORPUS
from tests.support.tensorflow_classes import as_tensorflow_reads, needs_tensorflow

pytestmark = pytest.mark.corpus


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


OF_TRACELENS = pytest.mark.parametrize(
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


@OF_TRACELENS
def test_totals_per_kernel_match_xprof(pattern: str, name: str) -> None:
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


def test_memory_in_use_matches_xprof() -> None:
    trace = read("tracelens-jax/jax08_attention")
    profile = expected("tracelens-jax_jax08_attention__2025_01_01", "memory_profile")
    snapshots = profile["memoryProfilePerAllocator"]["GPU_0_bfc"]["sampledTimelineSnapshots"]
    wanted = {int(item["aggregationStats"]["heapAllocatedBytes"]) for item in snapshots}
    on_device = trace.memory.device == 0
    assert set(trace.memory.allocated_bytes[on_device].tolist()) == wanted


def test_tpu_idle_share_matches_xprof() -> None:
    # XProf: device_idle_time_percent 13.4, the mean over the four cores of what their op line
    # leaves uncovered between its first start and its last end.
    trace = read("xprof-test")
    shares = []
    for track in np.flatnonzero(trace.tracks.kind == TrackKind.DEVICE_STREAM):
        on_track = trace.events.track == track
        start, end = trace.events.start_ns[on_track], trace.events.end_ns[on_track]
        shares.append(1 - (end - start).sum() / (end.max() - start.min()))
    assert len(shares) == 4
    assert 100 * np.mean(shares) == pytest.approx(13.4, abs=0.05)


def test_totals_per_tpu_operation_match_xprof() -> None:
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


def test_tpu_operations_link_to_their_launch() -> None:
    trace = read("xprof-test")
    modules = trace.rows(EventKind.DEVICE_MODULE)
    launched_by = trace.events.launched_by[modules]
    assert (launched_by >= 0).all()
    assert {trace.name(int(row)) for row in launched_by} == {"DoEnqueueProgram"}
    assert (trace.events.start_ns[launched_by] <= trace.events.start_ns[modules]).all()


@pytest.mark.parametrize(
    ("pattern", "name", "step_ms"),
    [
        ("local-jax-cpu/train_steps", "local-jax-cpu_train_steps__2026_11_21_02_01_33", "14.4"),
        (
            "local-jax-cpu/train_steps_host_bound",
            "local-jax-cpu_train_steps_host_bound__2026_11_21_02_01_34",
            "41.4",
        ),
        (
            "local-jax-cpu/train_dp4_sharded",
            "local-jax-cpu_train_dp4_sharded__2026_11_21_02_01_49",
            "20.0",
        ),
        (
            "local-tf-cpu/custom_loop_trace_steps",
            "local-tf-cpu_custom_loop_trace_steps__2026_11_21_01_49_55",
            "32.2",
        ),
    ],
)
def test_step_times_match_xprof(pattern: str, name: str, step_ms: str) -> None:
    # XProf: a step lasts as long as its marker, the first and the last are left out. (Ours lasts
    # until the next marker begins, so that steps partition time; all six are used.)
    steps_table = expected(name, "overview_page")[1]
    assert steps_table["p"]["steptime_ms_average"] == step_ms
    wanted_ns = {row["stepnum"]: round(row["stepTimeMs"] * 1e6) for row in table(steps_table)}
    trace = read(pattern)
    steps = trace.rows(EventKind.STEP)
    assert trace.events.step[steps].tolist() == [0, 1, 2, 3, 4, 5]
    found_ns = dict(
        zip(
            [f"train {number}" for number in trace.events.step[steps]],
            trace.events.duration_ns[steps].tolist(),
            strict=True,
        )
    )
    assert {number: found_ns[number] for number in wanted_ns} == pytest.approx(wanted_ns, abs=1)
    assert len(wanted_ns) == 4


@pytest.mark.parametrize(
    ("pattern", "name"),
    [
        (
            "local-tf-cpu/keras_slow_input/train",
            "local-tf-cpu_keras_slow_input_train__2026_11_21_01_49_50",
        ),
        (
            "local-tf-cpu/keras_prefetch_fast/train",
            "local-tf-cpu_keras_prefetch_fast_train__2026_11_21_01_49_52",
        ),
        (
            "local-tf-cpu/keras_mixed_bf16/train",
            "local-tf-cpu_keras_mixed_bf16_train__2026_11_21_01_49_54",
        ),
        (
            "local-tf-cpu/custom_loop_trace_steps",
            "local-tf-cpu_custom_loop_trace_steps__2026_11_21_01_49_55",
        ),
    ],
)
def test_totals_per_tensorflow_operation_match_xprof(pattern: str, name: str) -> None:
    # XProf's framework_op_stats: executions of each operator on the host and their summed
    # durations. Those that run on tf.data's threads are the input pipeline's in ours.
    wanted = {
        (f"{row['operation']}:{row['type']}"): (row["occurrences"], row["total_time"])
        for row in table(expected(name, "framework_op_stats")[0])
        if row["host_or_device"] == "Host" and row["type"] not in ("IDLE", "Dataset", "PyFunc")
    }
    trace = read(pattern)
    counts: Counter[str] = Counter()
    totals_ns: Counter[str] = Counter()
    for row in trace.rows(EventKind.OPERATOR, EventKind.INPUT_WORK).tolist():
        counts[trace.name(row)] += 1
        totals_ns[trace.name(row)] += int(trace.events.duration_ns[row])
    assert len(wanted) > 40
    for operation, (occurrences, total_us) in wanted.items():
        assert counts[operation] == occurrences, operation
        # Each event is rounded to whole nanoseconds.
        assert totals_ns[operation] == pytest.approx(1000 * total_us, abs=occurrences), operation


@OF_TRACELENS
def test_kernel_launches_match_xprof(pattern: str, name: str) -> None:
    # Blocks and threads of each kernel, as products of the three dimensions. (XProf does not read
    # ROCm's shared memory.)
    wanted = {
        (row["kernel_name"], product(row["grid_dim"]), product(row["block_dim"]))
        for row in table(expected(name, "kernel_stats"))
    }
    trace = read(pattern)
    kernels = trace.kernels
    names = [trace.name(row) for row in kernels.row.tolist()]
    launches = (kernels.grid_blocks.tolist(), kernels.block_threads.tolist())
    found = set(zip(names, *launches, strict=True))
    assert found <= wanted
    # XProf counts copies and fills that run as kernels as kernels.
    rest = {kernel.lower() for kernel, *_ in wanted - found}
    assert all("copy" in kernel or "fill" in kernel for kernel in rest), rest


def product(dimensions: str) -> int:
    return prod(int(dimension) for dimension in dimensions.split(","))


def test_kernel_launches_on_a_v100_match_xprof() -> None:
    # Registers, shared memory, blocks and threads: all that an old TensorFlow records.
    wanted = {
        (
            row["kernel_name"],
            int(row["registers_per_thread"]),
            int(row["shmem_bytes"]),
            product(row["grid_dim"]),
            product(row["block_dim"]),
        )
        for row in table(expected("xprof-demo__GPU-multi-worker", "kernel_stats"))
    }
    path = next((CORPUS / "xprof-demo").glob("**/GPU-multi-worker/*.xplane.pb"))
    with path.open("rb") as stream:
        trace = read_xplane(stream, Source(path="", format=""))
    kernels = trace.kernels
    launches = (kernels.registers, kernels.shared_memory_bytes, kernels.grid_blocks)
    columns = [column.tolist() for column in (*launches, kernels.block_threads)]
    names = [trace.name(row) for row in kernels.row.tolist()]
    assert set(zip(names, *columns, strict=True)) == wanted
    assert len(wanted) == 15


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
    # XProf's golden file covers two hosts with identical files, so half of it is ours.
    path = next((CORPUS / "xprof-demo").glob("**/GPU-multi-worker/*.xplane.pb"))
    trace = read_xplane(io.BytesIO(path.read_bytes()), Source(path="", format=""))
    kernels = trace.rows(EventKind.KERNEL)
    total_us = sum(
        row["total_duration_us"]
        for row in table(expected("xprof-demo__GPU-multi-worker", "kernel_stats"))
    )
    assert trace.events.duration_ns[kernels].sum() == pytest.approx(total_us / 2 * 1000, abs=50)
    assert len(trace.devices) == 8
    assert {identify(device).name for device in trace.devices} == {"Tesla V100-SXM2-16GB"}
    # XProf: one step, of 21.3 ms; it is the `Steps` line of the busiest GPU that says so.
    steps = Signals(run_of(trace)).steps
    assert (steps.count, round(steps.window_ns / 1e6, 1)) == (1, 21.3)
    assert trace.source.origin_unix_ns is None


def test_precision_by_operator_inputs_matches_xprof() -> None:
    # XProf: compute is of 16 bits where a shape of the kernel's operator is `half`, else of 32:
    # 30.5 % and 69.5 %. Ours is by what a kernel computes with, as its name has it: most of these
    # have no inputs in 16 bits (random numbers from a seed) and compute with them all the same.
    overview = expected("xprof-demo__GPU-multi-worker", "overview_page")[0]["p"]
    assert overview["device_compute_16bit_percent"] == "30.5%"
    assert overview["device_compute_32bit_percent"] == "69.5%"
    path = next((CORPUS / "xprof-demo").glob("**/GPU-multi-worker/*.xplane.pb"))
    with path.open("rb") as stream:
        trace = read_xplane(stream, Source(path="", format=""))
    kernels = trace.rows(EventKind.KERNEL)
    operators = launching_operator(trace)[trace.events.launched_by[kernels]]
    assert (operators >= 0).all()
    types = trace.by_event(trace.operators.row, trace.operators.dtypes, -1)[operators]
    is_half = np.array(["half" in trace.text(int(index)) for index in types])
    duration = trace.events.duration_ns[kernels]
    assert f"{duration[is_half].sum() / duration.sum():.1%}" == "30.5%"


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


@pytest.mark.frameworks
@needs_tensorflow
def test_agrees_with_tensorflows_own_classes() -> None:
    (path,) = CORPUS.glob("local-jax-cpu/train_dp4_sharded/plugins/profile/*/*.xplane.pb")
    # The corpus's index has 10051 events for this file.
    assert as_tensorflow_reads(path) == 10051
