"""What is alive at the peak of recorded profiles, against the totals that the allocator wrote."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tb_perfadvisor.api import load
from tb_perfadvisor.report.views.memory import make_memory_view
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.memory import MemoryCategory
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
    """One allocator event after the other: an address holds what was last allocated there."""
    run = load(corpus / name)[0]
    signals = Signals(run)
    view, found, use = make_memory_view(signals), memory_categories(signals), memory_use(signals)
    assert view is not None
    assert found is not None
    assert use is not None
    table = signals.trace.memory
    entries = np.flatnonzero(table.device == (-1 if use.device is None else use.device))
    names = [category.value for category in MemoryCategory]
    category_of = iter(found.of_each.tolist())
    live: dict[int, tuple[str, int]] = {}
    held = dict.fromkeys(names, 0)
    at_ends: list[dict[str, int]] = []
    ends = [*view.step_end_ns]
    for at_ns, address, change in zip(
        *(column[entries].tolist() for column in (table.at_ns, table.address, table.bytes)),
        strict=True,
    ):
        while ends and ends[0] < at_ns:
            at_ends.append(dict(held))
            ends.pop(0)
        if address in live:
            category, size = live.pop(address)
            held[category] -= size
        if change > 0:
            live[address] = names[next(category_of)], change
            held[live[address][0]] += change
    at_ends += [dict(held)] * len(ends)
    known = [course for course in view.course if course.category not in ("parameters", "earlier")]
    assert known
    for course in known:
        expected = [held[course.category] for held in at_ends]
        assert course.step_end_bytes == expected, course.category
    if not view.is_relative:
        totals = np.sum([course.step_end_bytes for course in view.course], axis=0)
        assert totals.tolist() == view.step_end_bytes
