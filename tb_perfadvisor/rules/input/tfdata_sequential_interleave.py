"""tf.data reads files one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MINIMUM_SHARE,
    available_cores,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import ASYNCHRONOUS, READERS, Pipelines, tfdata
from tb_perfadvisor.trace.intervals import total_ns


class TfdataSequentialInterleave(Rule):
    """One thread reads the files of a tf.data pipeline, and the step waits for it.

    What it finds
    -------------
    `Interleave` without parallel calls, or a list of files that a reader takes one by one, while
    the step waits for them.

    Why it matters
    --------------
    A file in a bucket or on a network mount answers after milliseconds, and a single stream uses a
    small part of the bandwidth. Reading many files at a time hides the latency and adds up the
    bandwidth.

    How it is measured
    ------------------
    High is the time that the step waits for the interleave and the iterators below it. Expected is
    what is saved when as many files are read at a time as the limit says and their records are
    decoded on that many cores. Low is 0, because a local disk or a busy processor may be no
    faster.

    When to ignore
    --------------
    When there is only one file, or when the files are on a local disk and the processor is the
    bottleneck.

    How to verify
    -------------
    The chain has `ParallelInterleave`, and the wait falls.

    References:
    ----------
    TensorFlow guide, "Better performance with the tf.data API", section on parallelizing data
    extraction.
    """

    id = "tfdata-sequential-interleave"
    title = "Read several files at a time"
    category = "input"
    refines = "input-stall"
    needs = (Need.WORK, Need.INPUT, Need.ITERATORS)
    is_preview = False

    minimum_share = MINIMUM_SHARE
    files_at_a_time = Limit(
        4, "count", "Even slow storage serves four parallel reads; most serves more."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each pipeline that reads one file at a time."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if not _reads_one_by_one(pipelines, node):
                continue
            nodes = [
                below
                for below in pipelines.below(node)
                # An iterator that works ahead does not wait for this thread.
                if pipelines.kind[below] not in ASYNCHRONOUS
            ]
            claims = stalls_of(pipelines, nodes)
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            yield Finding(
                instance=pipelines.kind[node],
                summary=(
                    f"{per_step(stall_ns, signals)} is spent waiting for {pipelines.kind[node]} and"
                    " the iterators below it, which read one file at a time."
                ),
                saving=Saving(0, self._saved_ns(pipelines, nodes), stall_ns, claims, "modeled"),
                evidence=iterator_evidence(signals, nodes, claims),
                remedies=advise("parallel-reads", "parallel-tfrecords"),
            )

    def _saved_ns(self, pipelines: Pipelines, nodes: list[int]) -> int:
        """Reading spreads over the files, decoding also over the cores."""
        files = self.files_at_a_time
        cores = min(files, available_cores(pipelines))
        return int(
            sum(
                pipelines.stall_ns(node)
                * (1 - 1 / (files if pipelines.kind[node] in READERS else cores))
                for node in nodes
            )
        )


def _reads_one_by_one(pipelines: Pipelines, node: int) -> bool:
    """Whether it reads files one by one and nothing above it reads several."""
    kinds = [pipelines.kind[above] for above in pipelines.above(node)]
    if any(kind.endswith("Interleave") for kind in kinds):
        return False
    readers = [below for below in pipelines.below(node) if pipelines.kind[below] in READERS]
    if pipelines.kind[node] == "Interleave":
        return bool(readers)
    # A reader of several files is a FlatMap over their names.
    return pipelines.kind[node] == "FlatMap" and any(
        pipelines.repeats[reader] > 1 for reader in readers
    )
