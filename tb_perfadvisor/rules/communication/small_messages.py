"""Many small collectives where few large ones would do."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    count_per_step,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.communication.fits import fits
from tb_perfadvisor.rules.communication.shortened import shortened, taken_ns
from tb_perfadvisor.rules.evidence.evidence import Cell, Column, Evidence, Table, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.collectives import Mask
from tb_perfadvisor.trace.integer_groups import group_rows
from tb_perfadvisor.units import format_duration

_REMEDIES = (
    Remedy(
        text="Let DistributedDataParallel reduce gradients in buckets, and reduce your own tensors "
        "(metrics, statistics of normalization) as one.",
        snippet=(
            "model = DistributedDataParallel(model, bucket_cap_mb=25)\n"
            "flat = torch.cat([tensor.flatten() for tensor in tensors])\n"
            "torch.distributed.all_reduce(flat)  # one message in place of many"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/notes/ddp.html",
    ),
    Remedy(
        text="Reduce the whole tree of gradients in one call, and let XLA combine what is left.",
        snippet=(
            'grads = jax.lax.pmean(grads, axis_name="data")\n'
            'os.environ["XLA_FLAGS"] = "--xla_gpu_all_reduce_combine_threshold_bytes=134217728"'
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/gpu_performance_tips.html",
    ),
    Remedy(
        text="Pack gradients before they are reduced.",
        snippet=(
            "options = tf.distribute.experimental.CommunicationOptions(\n"
            "    bytes_per_pack=50 * 1024 * 1024\n"
            ")"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/api_docs/python/tf/distribute/experimental/"
        "CommunicationOptions",
    ),
)


class SmallMessages(Rule):
    """Collectives are so small that starting them takes longer than sending.

    What it finds
    -------------
    Many small collectives of one kind in each step that nothing covers.

    Why it matters
    --------------
    Every collective costs its latency, some 10 to 50 microseconds within a node and more
    between nodes, however few bytes it carries. Hundreds of small ones cost milliseconds that
    one large one does not.

    How it is measured
    ------------------
    Small is a message of up to 256 KiB; where sizes were not recorded, a collective that takes
    up to 50 microseconds. High is their exposed time, less one message per step of each
    operation and group. All ranks at hand, waiting is taken off first and expected is as much
    as high, or what the steps save when they are re-timed; with ranks missing expected is half.

    When to ignore
    --------------
    When each of them is needed before the next can be computed, as in tensor parallel layers.

    How to verify
    -------------
    The number of collectives per step falls, and their summed time with it.

    References:
    ----------
    Hockney's model, time = latency + bytes / bandwidth (Hockney, "The communication challenge
    for MPP", 1994); Li et al., "PyTorch Distributed" (VLDB 2020), section 3.2.2 on buckets.
    """

    id = "small-messages"
    title = "Send few large messages rather than many small ones"
    category = "communication"
    refines = "exposed-communication"
    needs = (Need.WORK, Need.COLLECTIVES)
    is_preview = False

    small_bytes = Limit(
        262_144, "bytes", "Below a quarter of a megabyte NCCL's time hardly depends on the size."
    )
    small_ns = Limit(50_000, "ns", "Latency of a collective within a node is below 50 us.")
    minimum_count = Limit(
        20, "count", "A model with a few buckets and a few metrics has so many in a step."
    )
    minimum_share = Limit(0.005, "share", "Below half a percent merging is not worth the code.")

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when many small collectives of a step add up."""
        collectives = signals.collectives
        if signals.trace.totals is not None:
            return
        taken = taken_ns(signals)
        small = self._small(signals)
        target = np.zeros(len(collectives))
        chosen = np.zeros(len(collectives), dtype=bool)
        rows: list[tuple[Cell, ...]] = []
        operations, groups = collectives.operation, collectives.group
        first, kind = group_rows(operations.code, groups.code)
        kinds = sorted((operations[one], groups[one], at) for at, one in enumerate(first.tolist()))
        for operation, _, at in kinds:
            own = small & (kind == at)
            count = int(own.sum())
            steps = signals.steps.count
            if count < self.limit("minimum_count") * steps:
                continue
            # One message a step remains of each kind.
            target[own] = taken[own] * (steps / count)
            chosen |= own
            sizes = collectives.size_bytes[own]
            rows.append(
                (
                    operation,
                    count,
                    int(sizes.sum()) if (sizes >= 0).all() else None,
                    float(np.median(taken[own])),
                    int(collectives.exposed_ns[own].sum()),
                )
            )
        saving = shortened(signals, chosen, target) if rows else None
        if saving is None or share_of_window(saving.high_ns, signals) < self.limit("minimum_share"):
            return
        median = format_duration(float(np.median(taken[chosen])))
        yield Finding(
            summary=(
                f"{count_per_step(int(chosen.sum()), 'small collective', signals)} (of"
                f" {len(collectives) / signals.steps.count:,.0f}) take"
                f" {per_step(int(collectives.exposed_ns[chosen].sum()), signals)} that nothing"
                f" covers, the median one {median}."
            ),
            saving=saving,
            evidence=_evidence(signals, chosen, rows),
            remedies=_REMEDIES,
        )

    def _small(self, signals: Signals) -> Mask:
        collectives = signals.collectives
        sized = collectives.size_bytes >= 0
        by_size = collectives.size_bytes <= self.limit("small_bytes")
        by_time = collectives.duration_ns <= self.limit("small_ns")
        is_small: Mask = np.where(sized, by_size, by_time)
        return is_small


def _evidence(signals: Signals, chosen: Mask, rows: list[tuple[Cell, ...]]) -> tuple[Evidence, ...]:
    collectives = signals.collectives
    evidence: list[Evidence] = [
        Table(
            "Small collectives in the used steps",
            (
                Column("operation", "Operation"),
                Column("count", "Times", "count"),
                Column("size_bytes", "Bytes", "bytes"),
                Column("median_ns", "Median", "ns"),
                Column("exposed_ns", "Exposed", "ns"),
            ),
            tuple(rows),
        )
    ]
    fitted = fits(signals, sorted(collectives.operation.texts))
    if fitted is not None:
        evidence.append(fitted)
    evidence.append(
        costliest(
            "The most exposed of them",
            signals.worker,
            collectives.row[chosen],
            collectives.exposed_ns[chosen],
        )
    )
    return tuple(evidence)
