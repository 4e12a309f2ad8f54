"""The PyTorch TensorBoard plugin's numbers, under its definitions.

- *Steps* are the `ProfilerStep` ranges. Where the trace has runtime calls under the category that
  it knows (`Runtime`, of PyTorch up to 1.11), a step ends with the last device event that was
  launched inside it, and the next one begins there; a last step that launched less than 80 % of
  what the one before it did is dropped. Otherwise the ranges are taken as they are, those that are
  projected onto the device among them.
- *Time* goes to the first of kernels, copies, memsets, communication, runtime calls, data loader,
  operators; what is left is *other*. Communication is what runs on the host under five names;
  NCCL's kernels are kernels like others. Data loading and annotations of newer traces are unseen.
- *GPU utilization* is the union of kernels within all steps; *SM efficiency* weighs a kernel with
  its blocks per multiprocessor, at most 1; *occupancy* is averaged over the kernels' time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tb_perfadvisor.trace import BUSY_KINDS, EventKind, Trace
from tb_perfadvisor.trace.intervals import (
    Intervals,
    clip,
    intersect,
    minus,
    overlap_ns,
    total_ns,
    union,
)
from tests.support.corpus_traces import covered, read

RESNETS = {"kineto/resnet50_num_workers_0": 0, "kineto/resnet50_num_workers_4": 1}
COMMUNICATION = {
    f"{library}:{operation}"
    for library in ("nccl", "gloo")
    for operation in ("broadcast", "reduce", "all_reduce", "all_gather", "reduce_scatter")
}
RUNTIME_CALLS = (
    EventKind.LAUNCH,
    EventKind.SYNCHRONIZE,
    EventKind.ALLOCATE,
    EventKind.RUNTIME,
)
ROLES = ("Kernel", "Memcpy", "Memset", "Communication", "Runtime", "DataLoader", "CPU Exec")

Steps = NDArray[np.int64]
"""Shape (steps, 2): start and end of each."""


def marked_steps(trace: Trace) -> Steps:
    is_projected = trace.events.kind == EventKind.DEVICE_ANNOTATION
    is_projected &= named(trace, lambda name: name.startswith("ProfilerStep#"))
    rows = np.flatnonzero((trace.events.kind == EventKind.STEP) | is_projected)
    return np.column_stack((trace.events.start_ns[rows], trace.events.end_ns[rows]))


def extended_steps(trace: Trace) -> Steps:
    events = trace.events
    marks = marked_steps(trace)
    device = trace.rows(*BUSY_KINDS)
    device = device[events.launched_by[device] >= 0]
    launch = events.launched_by[device]
    step = np.searchsorted(marks[:, 0], events.start_ns[launch], side="right") - 1
    is_inside = (step >= 0) & (events.end_ns[launch] <= marks[step, 1])
    launched = [device[is_inside & (step == number)] for number in range(len(marks))]
    # What was launched before the steps, and ends before the first one's work starts.
    earlier = np.setdiff1d(trace.rows(*BUSY_KINDS), np.concatenate(launched))
    earlier_ends = events.end_ns[earlier]
    earlier_ends = earlier_ends[earlier_ends < events.start_ns[launched[0]].min()]
    reached = max([int(marks[0, 0]), *earlier_ends.tolist()])
    steps = []
    for (start, end), rows in zip(marks.tolist(), launched, strict=True):
        start = max(start, reached)
        reached = max(start, end, int(events.end_ns[rows].max()))
        steps.append((start, reached))
    if len(launched[-1]) < 0.8 * len(launched[-2]):
        steps.pop()
    return np.array(steps)


def named(trace: Trace, matches: Callable[[str], bool]) -> NDArray[np.bool_]:
    return np.array([matches(text) for text in trace.strings], dtype=bool)[trace.events.name]


def roles(trace: Trace, *, is_old: bool) -> Iterator[Intervals]:
    is_communication = named(trace, COMMUNICATION.__contains__)
    is_communication &= trace.events.kind < EventKind.KERNEL
    executed = (EventKind.OPERATOR, EventKind.ANNOTATION) if is_old else (EventKind.OPERATOR,)
    executed_rows = trace.rows(*executed)
    yield covered(trace, trace.rows(EventKind.KERNEL, EventKind.COLLECTIVE))
    yield covered(trace, trace.rows(EventKind.COPY))
    yield covered(trace, trace.rows(EventKind.MEMSET))
    yield covered(trace, np.flatnonzero(is_communication).astype(np.int32))
    yield covered(trace, trace.rows(*RUNTIME_CALLS) if is_old else executed_rows[:0])
    yield covered(trace, trace.rows(EventKind.INPUT_WAIT) if is_old else executed_rows[:0])
    yield covered(trace, executed_rows[~is_communication[executed_rows]])


def per_step_us(trace: Trace, steps: Steps, *, is_old: bool) -> dict[str, NDArray[np.float64]]:
    """Each step's time by role; what was given to an earlier role is gone for later ones."""
    left = union(steps[:, 0], steps[:, 1])
    parts = {}
    for role, spans in zip(ROLES, roles(trace, is_old=is_old), strict=True):
        parts[role] = intersect(left, spans)
        left = minus(left, parts[role])
    parts["Other"] = left
    return {
        role: overlap_ns(spans, steps[:, 0], steps[:, 1]) / 1e3 for role, spans in parts.items()
    }


def golden(corpus: Path, position: int) -> Any:
    """The overview of one run: the first of the documents that its end-to-end test expects."""
    lines = (corpus / "expected/kineto_resnet50_reference.txt").read_text().splitlines()
    documents = [json.loads(line) for line in lines if line.strip()]
    return [document for document in documents if "steps" in document][position]


@pytest.mark.parametrize(("name", "position"), RESNETS.items())
def test_every_step_is_split_as_the_golden_file_says(
    corpus: Path, name: str, position: int
) -> None:
    trace = read(corpus, f"{name}/*.gz")
    overview = golden(corpus, position)
    columns = [column["name"] for column in overview["steps"]["columns"] if "name" in column]
    found = per_step_us(trace, extended_steps(trace), is_old=True)
    assert found.pop("Communication").sum() == 0
    # Every second cell is a tooltip. Traces of that age have whole microseconds.
    wanted = [
        dict(zip(columns[1:-1], row[1::2], strict=False)) for row in overview["steps"]["rows"]
    ]
    assert len(wanted) == 6
    for number, step in enumerate(wanted):
        assert {role: found[role][number] for role in step} == step
    total_us = sum(values.sum() for values in found.values())
    percent = {role: 100 * values.sum() / total_us for role, values in found.items()}
    children = overview["performance"][0]["children"]
    assert percent == pytest.approx(
        {child["name"]: child["extra"] for child in children}, abs=0.00501
    )


@pytest.mark.parametrize(("name", "position"), RESNETS.items())
def test_the_gpu_summary_is_the_golden_files(corpus: Path, name: str, position: int) -> None:
    given = {
        figure["title"]: figure["value"]
        for figure in golden(corpus, position)["gpu_metrics"]["data"]
    }
    trace = read(corpus, f"{name}/*.gz")
    steps = extended_steps(trace)
    start_ns, end_ns = int(steps[0, 0]), int(steps[-1, 1])
    kernels, events = trace.kernels, trace.events
    inside_ns = np.clip(events.end_ns[kernels.row], start_ns, end_ns) - np.clip(
        events.start_ns[kernels.row], start_ns, end_ns
    )
    device = trace.devices[0]
    assert device.multiprocessors is not None
    filled = np.minimum(kernels.grid_blocks / device.multiprocessors, 1)
    busy = clip(covered(trace, kernels.row), start_ns, end_ns)
    found = {
        "GPU Utilization": total_ns(busy) / (end_ns - start_ns),
        # No two kernels overlap on the one stream.
        "Est. SM Efficiency": (filled * inside_ns).sum() / (end_ns - start_ns),
        "Est. Achieved Occupancy": (kernels.occupancy_share * inside_ns).sum() / inside_ns.sum(),
        "Kernel Time using Tensor Cores": inside_ns[kernels.tensor_cores == 1].sum(),
    }
    assert given["Name"] == device.name
    assert {key: 100 * value for key, value in found.items()} == pytest.approx(
        {key: float(given[key].removesuffix(" %")) for key in found}, abs=0.00501
    )


@pytest.mark.parametrize(
    ("pattern", "worker"),
    [
        # Runs of 0.4.3 on traces of newer versions of PyTorch.
        ("hta/trace_diff_control/*.gz", "worker0/default"),
        ("hta/trace_diff_test/*.gz", "worker0/default"),
        ("quentin-tutorial/transformer/dc3b0e7228dd_851.*993169006.*", "dc3b0e7228dd_851/1"),
        ("quentin-tutorial/transformer/dc3b0e7228dd_851.*025896717.*", "dc3b0e7228dd_851/2"),
        ("tracelens/h100/google_owlv2-large-patch14-ensemble/*.gz", "rank0/default"),
        ("local-torch2.13-cpu/conv_dl0_slow_rich/*.gz", "worker0/1"),
        ("local-torch2.13-cpu/ddp_gloo_2rank_straggler/rank0*", "rank0/1"),
        ("local-torch2.13-cpu/ddp_gloo_2rank_straggler/rank1*", "rank1/1"),
        ("local-torch2.13-cpu/vit_patchdropout_gather/*.gz", "vit/1"),
    ],
)
def test_the_average_step_is_the_plugins(corpus: Path, pattern: str, worker: str) -> None:
    runs = json.loads((corpus / "expected/torch_tb_profiler-0.4.3.json").read_text())
    ((_, _, parts),) = runs[pattern.rpartition("/")[0]][worker]["perf"]
    trace = read(corpus, pattern)
    steps = marked_steps(trace)
    found_us = {
        role: values.mean() for role, values in per_step_us(trace, steps, is_old=False).items()
    }
    wanted_us = {role: us for role, us, _ in parts}
    assert {role: us for role, us in found_us.items() if us} == pytest.approx(
        {role: us for role, us in wanted_us.items() if us}, abs=0.51
    )
    mean_us = (steps[:, 1] - steps[:, 0]).mean() / 1e3
    wanted_percent = {role: percent for role, _, percent in parts}
    assert {role: 100 * found_us[role] / mean_us for role in wanted_percent} == pytest.approx(
        wanted_percent, abs=0.00501
    )


def test_the_counters_it_draws_are_the_golden_files(corpus: Path) -> None:
    # The golden file's counters are scaled: utilization by 100, SM efficiency by 10. The plugin
    # itself, run on this trace, gives a hundredth and a tenth of them.
    document = json.loads((corpus / "expected/gpu_metrics_expected.json").read_text())
    trace = read(corpus, "kineto/test_gpu_metrics/*/*.json")
    events, kernels = trace.events, trace.kernels
    origin_ns = trace.source.origin_unix_ns
    assert origin_ns is not None

    def points(name: str) -> tuple[NDArray[np.int64], list[float]]:
        """The counter's times and values, without the two that only set the drawing's scale."""
        drawn = [event for event in document["traceEvents"] if event["name"] == name][2:]
        at_ns = np.array([event["ts"] * 1000 - origin_ns for event in drawn])
        return at_ns, [value for event in drawn for value in event["args"].values()]

    # Utilization in buckets from one point to the next; the last point closes the last bucket.
    at_ns, wanted = points("GPU 0 Utilization")
    busy = covered(trace, kernels.row)
    share = overlap_ns(busy, at_ns[:-1], at_ns[1:]) / np.diff(at_ns)
    assert [*(100 * share).tolist(), 0] == pytest.approx(wanted, abs=1e-9)
    assert sum(wanted) > 3

    # Blocks per multiprocessor at each kernel's start, and back to zero at its end.
    at_ns, wanted = points("GPU 0 Est. SM Efficiency")
    multiprocessors = document["computeProperties"][0]["multiProcessorCount"]
    assert at_ns[::2].tolist() == events.start_ns[kernels.row].tolist()
    assert at_ns[1::2].tolist() == events.end_ns[kernels.row].tolist()
    assert wanted[::2] == pytest.approx((10 * kernels.grid_blocks / multiprocessors).tolist())
    assert set(wanted[1::2]) == {0}
