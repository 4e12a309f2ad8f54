"""What is alive at the peak of recorded profiles, against the totals that the allocator wrote."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tb_perfadvisor import load
from tb_perfadvisor.report.views.memory import make_memory_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.operators import MemoryCategory
from tb_perfadvisor.signals.device.memory_use import memory_categories, memory_use


@pytest.mark.parametrize(
    "path",
    [
        "hta/df_index_resolver/07019a1e",
        "tracelens/h100/google_owlv2-large-patch14-ensemble",
        "tracelens/h100/Qwen_Qwen1.5-0.5B-Chat",
        "local-torch2.13-cpu/vit_patchdropout_gather",
        "tracelens-jax/jax08_attention",
    ],
)
def test_pairs_of_addresses_agree_with_the_totals(corpus: Path, path: str) -> None:
    (run,) = load(corpus / path)
    signals = Signals(run)
    use = memory_use(signals)
    assert use is not None
    assert use.allocations is not None
    table = run.traces[0].memory
    on_device = table.device == (-1 if use.device is None else use.device)
    change, address = table.bytes[on_device], table.address[on_device]
    # Independent of the pairing: what the first total leaves over, less what is freed and was
    # never seen to be allocated, is what was there before the recording.
    held = int(use.allocated_bytes[0] - change[0])
    live: set[int] = set()
    for row in range(use.peak + 1):
        if change[row] > 0:
            live.add(int(address[row]))
        elif int(address[row]) in live:
            live.remove(int(address[row]))
        else:
            held += int(change[row])
    # Recordings on the CPU state no totals, so what was there before is unknown.
    assert use.preexisting_bytes(use.peak) == (held if use.has_totals else None)
    alive = use.alive_at(int(use.at_ns[use.peak]))
    assert alive is not None
    assert len(alive) == len(live)
    assert np.all(alive.row >= 0) or run.traces[0].source.framework != "pytorch"


def test_what_a_data_parallel_training_holds_at_its_peak(corpus: Path) -> None:
    """Added up from the file: allocated under operators before and in the backward pass."""
    (run,) = load(corpus / "hta/df_index_resolver/07019a1e")
    signals = Signals(run)
    found = memory_categories(signals)
    assert found is not None
    # Gradients are kept from step to step, so they are from before the recording.
    assert found.at_peak == {
        MemoryCategory.ACTIVATIONS: 1_333_781_504,
        MemoryCategory.TEMPORARY: 1_199_112_192,
        MemoryCategory.EARLIER: 4_096_614_400,
    }
    # The allocator's own total.
    assert sum(found.at_peak.values()) == 6_629_508_096


@pytest.mark.parametrize(
    "name",
    [
        "hta/df_index_resolver/07019a1e",
        "local-bench/vit_large_trace_50steps",
        "local-torch2.13-cpu/conv_dl0_slow_rich",
        "local-torch2.13-cpu/vit_patchdropout_gather",
    ],
)
def test_categories_at_the_end_of_each_step(corpus: Path, name: str) -> None:
    """Added up from the file's own events, one after the other."""
    view = make_memory_view(Signals(load(corpus / name)[0]))
    assert view is not None
    (file,) = (corpus / name).glob("*.json.gz")
    with gzip.open(file) as stream:
        events = json.load(stream)["traceEvents"]
    allocations = allocations_of(events, view.device)
    ends = step_ends(events)
    assert len(ends) == len(view.step_end_ns)
    known = [course for course in view.course if course.category not in ("parameters", "earlier")]
    expected = {
        category: [
            sum(size for kind, size, *life in allocations if kind == category and alive(life, end))
            for end in ends
        ]
        for category in {kind for kind, *_ in allocations}
    }
    assert {course.category: course.step_end_bytes for course in known} == expected
    if not view.is_relative:
        totals = np.sum([course.step_end_bytes for course in view.course], axis=0)
        assert totals.tolist() == view.step_end_bytes


def alive(life: list[float], at_us: float) -> bool:
    since, until = life
    return since <= at_us < until


def step_ends(events: list[dict[str, Any]]) -> list[float]:
    """A step ends where the next one begins, and the last one at the end of its mark."""
    steps = sorted(
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if str(event.get("name")).startswith("ProfilerStep#") and event["cat"] == "user_annotation"
    )
    return [start for start, _ in steps[1:]] + [steps[-1][1]]


def allocations_of(
    events: list[dict[str, Any]], device: int | None
) -> list[tuple[str, int, float, float]]:
    """Category, bytes, and when it is allocated and freed, of all allocations."""
    stacks: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    open_at: dict[int, list[Any]] = {}
    found: list[list[Any]] = []
    passes: dict[str, list[float]] = {"backward": [], "optimizer": []}
    timed = [event for event in events if "ts" in event and event.get("cat") in CATEGORIES]
    # Of events that begin together the longest is around the others, and memory is inside.
    for event in sorted(timed, key=lambda event: (event["ts"], -event.get("dur", -1))):
        at, stack = event["ts"], stacks[event["tid"]]
        while stack and stack[-1]["ts"] + stack[-1]["dur"] < at:
            stack.pop()
        if event["name"] != "[memory]":
            stack.append(event)
            part = part_of(event)
            starts = passes.get(part)
            if starts is not None and (
                part == "optimizer" or not starts or [0, *passes["optimizer"]][-1] > starts[-1]
            ):
                starts.append(at)
            continue
        args = event["args"]
        if (args["Device Id"] if args["Device Type"] else None) != device:
            continue
        if args["Addr"] in open_at:
            open_at.pop(args["Addr"])[3] = at
        if args["Bytes"] > 0:
            marked = [part_of(outer) for outer in stack if part_of(outer)]
            is_inside = any(outer["cat"] == "cpu_op" for outer in stack)
            part = marked[0] if marked else "forward" if is_inside else "other"
            found.append([part, args["Bytes"], at, inf])
            open_at[args["Addr"]] = found[-1]
    return [
        (category(part, since, until, **passes), size, since, until)
        for part, size, since, until in found
    ]


CATEGORIES = ("cpu_op", "user_annotation", "cpu_instant_event")


def part_of(event: dict[str, Any]) -> str:
    name = event["name"]
    if name.startswith("autograd::engine::evaluate_function: "):
        return "backward"
    if name.startswith("Optimizer.step#"):
        return "optimizer"
    return "input" if name.startswith("enumerate(DataLoader)#") else ""


def category(
    part: str, since: float, until: float, *, backward: list[float], optimizer: list[float]
) -> str:
    """What an allocation is for, by docs/numbers.md."""

    def following(starts: list[float], at: float) -> float:
        return min((start for start in starts if start >= at), default=inf)

    if part in ("input", "other"):
        return "input" if part == "input" else "unknown"
    ends_with = following(optimizer if part == "backward" else backward, since)
    if until < inf and until <= ends_with:
        return "temporary"
    if part == "forward":
        stepped = following(optimizer, ends_with)
        is_kept = until > following(backward, stepped) or (until == inf and stepped < inf)
        return "activations" if until > ends_with and not is_kept else "unknown"
    if part == "optimizer":
        return "optimizer-state"
    return "gradients" if until > ends_with else "unknown"
