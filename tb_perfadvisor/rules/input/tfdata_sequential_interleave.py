"""Files that tf.data reads one after the other."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tfdata_pipelines import (
    MINIMUM_SHARE,
    available_cores,
    iterator_evidence,
    stalls_of,
)
from tb_perfadvisor.rules.finding import Finding, Remedy, Saving
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.input.tfdata import ASYNCHRONOUS, READERS, Pipelines, tfdata
from tb_perfadvisor.trace.intervals import total_ns

_REMEDIES = (
    Remedy(
        text="Read several files at a time.",
        snippet=(
            "files = tf.data.Dataset.list_files(pattern)\n"
            "dataset = files.interleave(\n"
            "    tf.data.TFRecordDataset,\n"
            "    cycle_length=16,\n"
            "    num_parallel_calls=tf.data.AUTOTUNE,\n"
            "    deterministic=False,\n"
            ")"
        ),
        reference="https://www.tensorflow.org/guide/data_performance#parallelizing_data_extraction",
    ),
    Remedy(
        text="TFRecord files alone can be read in parallel without an interleave.",
        snippet="dataset = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE)",
        reference="https://www.tensorflow.org/api_docs/python/tf/data/TFRecordDataset",
    ),
)


class TfdataSequentialInterleave(Rule):
    """One thread reads the files of a tf.data pipeline, and the step waits for it.

    What it finds
    -------------
    `Interleave` without parallel calls, or a list of files that a reader takes one by one,
    where the step waits for what lies beneath.

    Why it matters
    --------------
    A file in a bucket or on a network mount answers after milliseconds, and one stream of it is
    a small part of the bandwidth there is. Many files at a time hide the one and add up the other.

    How it is measured
    ------------------
    High is the time that the step waits for the interleave and what feeds it. Expected is what
    of it is saved when as many files are read at a time as the limit says, and their records
    decoded on as many cores as there are; low is 0, for a local disk or a busy processor may
    give no more.

    When to ignore
    --------------
    When there is one file, or when files lie on a local disk and the processor is what is busy.

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
        4, "count", "The parallel reads that the slowest storage gives room to; most give more."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding for each pipeline that waits for one file at a time."""
        pipelines = tfdata(signals)
        for node in range(len(pipelines)):
            if not _takes_turns(pipelines, node):
                continue
            nodes = [
                one
                for one in pipelines.below(node)
                # What works ahead by itself is not waited for because of one thread.
                if pipelines.kind[one] not in ASYNCHRONOUS
            ]
            claims = stalls_of(pipelines, nodes)
            stall_ns = total_ns(claims)
            if self.is_minor(stall_ns, signals):
                continue
            yield Finding(
                summary=(
                    f"{pipelines.kind[node]} reads one file at a time; the step waits for it and"
                    f" what feeds it {per_step(stall_ns, signals)}."
                ),
                saving=Saving(0, self._saved_ns(pipelines, nodes), stall_ns, claims, "modeled"),
                evidence=iterator_evidence(signals, nodes, claims),
                remedies=_REMEDIES,
            )

    def _saved_ns(self, pipelines: Pipelines, nodes: list[int]) -> int:
        """Reading spreads over the files, decoding over the cores as well."""
        files = self.files_at_a_time
        busy = min(files, available_cores(pipelines))
        return int(
            sum(
                pipelines.stall_ns(node)
                * (1 - 1 / (files if pipelines.kind[node] in READERS else busy))
                for node in nodes
            )
        )


def _takes_turns(pipelines: Pipelines, node: int) -> bool:
    """Whether it reads files one by one, and nothing above it reads several."""
    kinds = [pipelines.kind[above] for above in pipelines.above(node)]
    if any(kind.endswith("Interleave") for kind in kinds):
        return False
    below = pipelines.below(node)
    reads = [one for one in below if pipelines.kind[one] in READERS]
    if pipelines.kind[node] == "Interleave":
        return bool(reads)
    # A reader of several files is a FlatMap over their names.
    return pipelines.kind[node] == "FlatMap" and any(pipelines.repeats[one] > 1 for one in reads)
