"""Records that tf.data reads and decodes again in each epoch, though memory would hold them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

import numpy as np

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MINIMUM_SHARE,
    REPEATS,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Remedy, Saving
from tb_perfadvisor.rules.savings.input_rate import saving_of_doubled_input_rate_ns
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import Pipelines, tfdata
from tb_perfadvisor.signals.input.tfdata_elements import element_bytes
from tb_perfadvisor.signals.input.tfdata_functions import function_operators
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import format_bytes

_REMEDIES = (
    Remedy(
        text="Keep the decoded records in memory after the first epoch; what is random in each "
        "epoch stays behind the cache.",
        snippet=(
            "dataset = dataset.map(decode, num_parallel_calls=tf.data.AUTOTUNE).cache()\n"
            "dataset = dataset.shuffle(10_000).repeat()\n"
            "dataset = dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE)\n"
            "dataset = dataset.batch(batch_size).prefetch(tf.data.AUTOTUNE)"
        ),
        reference="https://www.tensorflow.org/guide/data_performance#caching",
    ),
)


class TfdataUncachedSource(Rule):
    """The same records are read and decoded in every epoch, and would fit into memory.

    What it finds
    -------------
    A `Repeat` whose epochs are so short that the profile sees whole ones, without a cache
    beneath it, whose records would take a small part of the memory that tf.data may use.

    Why it matters
    --------------
    From the second epoch on, reading and decoding only makes what was there before.

    How it is measured
    ------------------
    The records of an epoch are the calls of one of the iterators that the repeat makes anew;
    their size follows from their shapes. Expected and high are the time that the step waits for
    what lies beneath the repeat; low is half of what input at twice its pace would save.
    Pipelines with random operations in their functions are left alone: their records differ from
    epoch to epoch.

    When to ignore
    --------------
    When the functions are random in ways that no operation shows, or other jobs need the memory.

    How to verify
    -------------
    The chain has `MemoryCache` beneath the repeat, and the wait is gone from the second epoch on.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API", section on caching.
    """

    id = "tfdata-uncached-source"
    title = "Cache a data set that fits into memory"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE
    memory_share = Limit(
        0.25, "share", "Model, buffers and the page cache want their part of the host's memory."
    )
    maximum_bytes = Limit(
        1e9, "bytes", "Where the memory's size is unknown: what any training host has to spare."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each repeat that would gain by a cache."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if pipelines.kind[node] not in REPEATS:
                continue
            below = [one for child in pipelines.children(node) for one in pipelines.below(child)]
            if any("Cache" in pipelines.kind[one] for one in below):
                continue
            claims = stalls_of(pipelines, below)
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            size = _epoch_bytes(signals, pipelines, node)
            if size is None or size > self._room(pipelines) or _is_random(signals):
                continue
            yield Finding(
                summary=(
                    f"An epoch of {format_bytes(size)} is read and decoded again and again; the"
                    f" step waits for it {per_step(stall_ns, signals)}."
                ),
                saving=Saving(
                    saving_of_doubled_input_rate_ns(stall_ns, signals.attribution.window_ns),
                    stall_ns,
                    stall_ns,
                    claims,
                    "measured",
                ),
                evidence=iterator_evidence(signals, below, claims),
                remedies=_REMEDIES,
            )

    def _room(self, pipelines: Pipelines) -> float:
        if pipelines.memory_bytes is None:
            return self.maximum_bytes
        return self.memory_share * pipelines.memory_bytes


def _epoch_bytes(signals: Signals, pipelines: Pipelines, node: int) -> int | None:
    """The size of all records between two beginnings; None where no whole epoch was seen."""
    (child, *others) = pipelines.children(node) or [-1]
    if child < 0 or others:
        return None
    table = signals.trace.iterators
    iterator = signals.trace.by_event(table.row, table.iterator, 0)[pipelines.call_rows[child]]
    _, first, count = np.unique(iterator, return_index=True, return_counts=True)
    # The first and the last epoch may have begun before the profile, or go on after it.
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
