"""Ranks that come late because their input does."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table
from tb_perfadvisor.rules.remedies import EVEN_INPUT
from tb_perfadvisor.signals import Cause, Need, Signals, ranks_of
from tb_perfadvisor.signals.ranks.stragglers import excess_of, lateness
from tb_perfadvisor.units import format_duration

_REMEDIES = (
    EVEN_INPUT,
    Remedy(
        text="Shard the files evenly: more files than workers, of about one size.",
        snippet=(
            "dataset = files.shard(num_shards=strategy.num_replicas_in_sync, index=replica)\n"
            "dataset = dataset.interleave(\n"
            "    tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE\n"
            ")"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/tutorials/distribute/input",
    ),
    Remedy(
        text="Shard the records evenly over the processes.",
        snippet=(
            "sampler = grain.samplers.IndexSampler(\n"
            "    num_records, shard_options=grain.sharding.ShardByJaxProcess(drop_remainder=True)\n"
            ")"
        ),
        framework="jax",
        reference="https://github.com/google/grain",
    ),
)


class InputImbalance(Rule):
    """One rank's input is slower than the others', and all wait for it.

    What it finds
    -------------
    A straggler whose steps are longer than the others' mostly because it waits for input.

    Why it matters
    --------------
    The slowest rank's loader sets the pace of all. It need not be the loader's fault: an uneven
    shard, longer samples, or a disk that is farther away do the same.

    How it is measured
    ------------------
    What the late rank waits for input more than the median of the ranks in time, as far as the
    others wait for it in collectives.

    When to ignore
    --------------
    When the profiled steps hold a rare refill of one rank's cache.

    How to verify
    -------------
    All ranks wait equally long for input.

    References:
    ----------
    TensorFlow guide, "Distributed input"; PyTorch documentation, `DistributedSampler`.
    """

    id = "input-imbalance"
    title = "Feed all ranks equally fast"
    category = "input"
    refines = "straggler"
    needs = (Need.WORK, Need.COLLECTIVES, Need.ALL_RANKS, Need.INPUT)

    minimum_share = Limit(
        0.05, "share", "Ranks never fetch equally fast; a twentieth of the step is no jitter."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when input is what makes a rank late."""
        found = lateness(signals)
        if found is None or signals.worker not in found.late:
            return
        excess = excess_of(ranks_of(signals), signals.worker, found.late)
        if not excess or excess[0].cause is not Cause.INPUT:
            return
        first = excess[0]
        claims = signals.attribution.intervals[Cause.INPUT]
        more_ns = round((first.own_ns - first.others_ns) * signals.steps.count)
        saved_ns = min(more_ns, int(found.own_middle_ns.sum()))
        if self.is_minor(saved_ns, signals):
            return
        rank = signals.trace.source.rank
        own = format_duration(first.own_ns)
        yield Finding(
            summary=(
                f"Rank {rank if rank is not None else signals.worker} waits {own} of each step for"
                f" input, the median of those in time {format_duration(first.others_ns)}."
            ),
            saving=Saving(saved_ns, saved_ns, more_ns, claims, "measured"),
            evidence=(
                Table(
                    "Waiting for input, per step",
                    (Column("rank", "Rank"), Column("input_ns", "Waits for input", "ns")),
                    tuple(
                        (
                            str(source.rank if source.rank is not None else source.host),
                            int(summary.cause_total_ns[list(Cause).index(Cause.INPUT)])
                            // summary.step_count,
                        )
                        for source, summary in zip(
                            ranks_of(signals).sources, ranks_of(signals).summaries, strict=True
                        )
                    ),
                ),
            ),
            remedies=_REMEDIES,
            ranks=() if rank is None else (rank,),
        )
