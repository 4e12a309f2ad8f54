"""tf.data reads and decodes the same records in each epoch although they fit in memory."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MINIMUM_SHARE,
    REPEATS,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.rules.savings.input_rate import saving_of_doubled_input_rate_ns
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import Pipelines, tfdata
from tb_perfadvisor.signals.input.tfdata_elements import element_bytes
from tb_perfadvisor.signals.input.tfdata_functions import function_operators
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_bytes


class TfdataUncachedSource(Rule):
    """The same records are read and decoded in every epoch although they fit in memory.

    What it finds
    -------------
    A `Repeat` without a cache below it whose epochs are so short that the profile contains whole
    ones, and whose records would take a small part of the memory that tf.data may use.

    Why it matters
    --------------
    From the second epoch on, reading and decoding only reproduces what was there before.

    How it is measured
    ------------------
    The number of records per epoch is the number of calls of one of the iterators that the repeat
    creates anew; their size follows from their shapes. Expected and high are the time that the
    step waits for the iterators below the repeat. Low is half of what a pipeline of twice the rate
    would save. Pipelines with random operations in their functions are left alone, because their
    records differ between epochs.

    When to ignore
    --------------
    When the functions are random in ways that no operation shows, or when other jobs need the
    memory.

    How to verify
    -------------
    The chain has `MemoryCache` below the repeat, and the wait is gone from the second epoch on.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API", section on caching.
    """

    id = "tfdata-uncached-source"
    title = "Cache a dataset that fits in memory"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE
    memory_share = Limit(
        0.25, "share", "The model, buffers and the page cache need host memory, too."
    )
    maximum_bytes = Limit(
        1e9,
        "bytes",
        "Any training host can spare this much; used if the size of its memory is unknown.",
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each repeat that a cache would speed up."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] not in REPEATS:
                continue
            below = [
                iterator
                for child in pipelines.children(node)
                for iterator in pipelines.below(child)
            ]
            if any("Cache" in pipelines.kind[iterator] for iterator in below):
                continue
            claims = stalls_of(pipelines, below)
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            size = _epoch_bytes(signals, pipelines, node)
            if size is None or size > self._available_bytes(pipelines) or _is_random(signals):
                continue
            yield Finding(
                instance=f"an epoch is only {format_bytes(size)}",
                summary=(
                    f"{per_step(stall_ns, signals)} is spent waiting for records that are read and"
                    f" decoded again in each epoch, although an epoch is only {format_bytes(size)}."
                ),
                saving=Saving(
                    saving_of_doubled_input_rate_ns(stall_ns, signals.attribution.window_ns),
                    stall_ns,
                    stall_ns,
                    claims,
                    "measured",
                ),
                evidence=iterator_evidence(signals, below, claims),
                remedies=advise("cached-records"),
            )

    def _available_bytes(self, pipelines: Pipelines) -> float:
        if pipelines.memory_bytes is None:
            return self.maximum_bytes
        return self.memory_share * pipelines.memory_bytes


def _epoch_bytes(signals: Signals, pipelines: Pipelines, node: int) -> int | None:
    """The size of the records of one epoch; None if the profile contains no whole epoch."""
    (child, *siblings) = pipelines.children(node) or [-1]
    if child < 0 or siblings:
        return None
    table = signals.trace.iterators
    iterator = signals.trace.by_event(table.row, table.iterator, 0)[pipelines.call_rows[child]]
    _, first, count = np.unique(iterator, return_index=True, return_counts=True)
    # The first epoch may have begun before the profile, and the last may end after it.
    whole = count[np.argsort(first)][1:-1]
    size = element_bytes(
        pipelines.shapes[child],
        pipelines.types[child],
        batch_size=int(pipelines.batch_size[child]),
    )
    return None if size is None or not whole.size else int(whole.max()) * size


@cache
def _random() -> re.Pattern[str]:
    return re.compile(r"[Rr]andom|[Ss]ample_?[Dd]istorted|[Mm]ultinomial")


def _is_random(signals: Signals) -> bool:
    trace = signals.trace
    names = distinct(trace.events.name[function_operators(signals)])
    return any(_random().search(trace.strings[name]) for name in names.tolist())
