"""Communication that no compute overlaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.collectives import most_exposed
from tb_perfadvisor.rules.evidence.tables import event_count
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table
from tb_perfadvisor.signals import Cause, Need, Signals, collectives_of
from tb_perfadvisor.signals.ranks.collective_costs import link_of_group, wire_bytes
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import NS_PER_S, format_duration, format_share
from tb_perfadvisor.whatif import Shorten

_REMEDIES = (
    Remedy(
        text="Send gradient buckets while the backward pass is still running.",
        snippet=(
            "model = DistributedDataParallel(\n"
            "    model,\n"
            "    bucket_cap_mb=50,\n"
            "    gradient_as_bucket_view=True,\n"
            "    static_graph=True,\n"
            ")"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/notes/ddp.html",
    ),
    Remedy(
        text="Synchronize gradients once per accumulated batch, not once per micro-batch.",
        snippet=(
            "with model.no_sync():\n"
            "    for micro_batch in micro_batches[:-1]:\n"
            "        loss_fn(model(micro_batch)).backward()\n"
            "loss_fn(model(micro_batches[-1])).backward()"
        ),
        framework="pytorch",
        reference="https://pytorch.org/docs/stable/generated/"
        "torch.nn.parallel.DistributedDataParallel.html",
    ),
    Remedy(
        text="Let XLA's latency-hiding scheduler overlap collectives with compute.",
        snippet='os.environ["XLA_FLAGS"] = "--xla_gpu_enable_latency_hiding_scheduler=true"',
        framework="jax",
        reference="https://docs.jax.dev/en/latest/gpu_performance_tips.html",
    ),
    Remedy(
        text="Use a larger batch per device: the bytes to reduce stay the same, and there is "
        "more compute to hide them.",
        snippet="global_batch = 2 * batch_per_device * jax.device_count()",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/sharded-computation.html",
    ),
    Remedy(
        text="Use a larger batch per replica: the bytes to reduce stay the same, and there is "
        "more compute to hide them.",
        snippet="global_batch = 2 * batch_per_replica * strategy.num_replicas_in_sync",
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/distributed_training",
    ),
    Remedy(
        text="Use NCCL for the all-reduce across GPUs, and pack the gradients.",
        snippet=(
            "strategy = tf.distribute.MirroredStrategy(\n"
            "    cross_device_ops=tf.distribute.NcclAllReduce(num_packs=1)\n"
            ")"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/distributed_training",
    ),
)


_GPU_ONLY = ("xla_gpu", "Nccl")
"""Words in the snippets of remedies that only work on GPUs."""
_ALMOST_ALL = 0.9995
"""From here on, `format_share` prints 100.0 %."""


class ExposedCommunication(Rule):
    """Collectives run while nothing is computed.

    What it finds
    -------------
    Collective time that no compute on the device overlaps. If the profiles of all ranks are
    available, it is split into transfer and waiting for other ranks.

    Why it matters
    --------------
    Communication that runs beside compute is nearly free. Exposed communication lengthens the step
    by its full duration, on every rank.

    How it is measured
    ------------------
    Time in which the device communicates and does not compute. If all ranks were profiled, the
    shortest duration of a collective over the ranks is its transfer, and the remainder is waiting,
    which overlap does not cure: expected and high are the exposed transfer, or what the steps save
    when they are replayed without it. If ranks are missing, the split is unknown: transfer is at
    least the time that the bytes need on the link (where both are known) and at most all exposed
    time. High is that maximum, and expected is halfway between the two. Low is always 0: exposed
    communication may not be on the critical path, and there may be too little compute to hide it.

    When to ignore
    --------------
    When a profiled step contains an unusual collective: a checkpoint, an evaluation, a barrier.

    How to verify
    -------------
    Exposed communication falls while the total time in collectives stays the same, and the step
    becomes shorter by as much.

    References:
    ----------
    Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training"
    (VLDB 2020), section 3.2.
    """

    id = "exposed-communication"
    title = "Hide communication behind compute"
    category = "communication"
    reads_sums = True
    needs = (Need.WORK, Need.COLLECTIVES)
    is_preview = False

    minimum_share = Limit(
        0.03, "share", "The last gradient bucket of a step has no compute left to overlap with."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a good part of the step only communicates."""
        attribution, collectives = signals.attribution, collectives_of(signals)
        claims = attribution.intervals[Cause.COMMUNICATION]
        exposed_ns = total_ns(claims)
        if self.is_minor(exposed_ns, signals):
            return
        split = _transfer_share(signals)
        has_gpu = signals.device_facts is not None and signals.device_facts.kind == "gpu"
        high = exposed_ns if split is None else round(exposed_ns * split)
        wire_ns = min(_wire_ns(signals), exposed_ns)
        expected = (wire_ns + exposed_ns) // 2 if split is None else high
        yield Finding(
            summary=(
                f"{per_step(exposed_ns, signals)} is communication that no compute overlaps"
                f" ({count_per_step(collectives.count, 'collective', signals)});"
                f" {_on_waiting(signals, split, wire_ns)}."
            ),
            saving=(
                Saving(0, expected, high, claims, "heuristic")
                if split is None
                else Saving(0, expected, high, claims, "measured", (_hidden(signals, split),))
            ),
            evidence=(
                _by_operation(signals),
                most_exposed(
                    "Most exposed collectives", signals, np.ones(len(collectives), dtype=bool)
                ),
            ),
            remedies=tuple(
                remedy
                for remedy in _REMEDIES
                if has_gpu or not any(word in remedy.snippet for word in _GPU_ONLY)
            ),
        )


def _on_waiting(signals: Signals, split: float | None, wire_ns: int) -> str:
    unknown = "without profiles of all ranks, how much of it is waiting for other ranks is unknown"
    if split is None and wire_ns:
        least = format_duration(wire_ns / signals.steps.count)
        return f"at least {least} is transfer, judging by the bytes sent; {unknown}"
    if split is None:
        return unknown
    peers = "ranks" if len(signals.run.traces) > 1 else "devices"
    waiting = format_share(1 - split) if split < _ALMOST_ALL else "none"
    return f"{waiting} of the time in collectives is waiting for other {peers}"


def _wire_ns(signals: Signals) -> int:
    """Exposed time that the collectives' bytes need on the link, where both are known.

    Assumes that the overlapped part of a collective is spent on transfer first.
    """
    collectives = collectives_of(signals)
    needed_ns = wire_bytes(signals) / link_of_group(signals) * NS_PER_S
    covered_ns = collectives.duration_ns - collectives.exposed_ns
    exposed_ns = np.clip(np.nan_to_num(needed_ns) - covered_ns, 0, collectives.exposed_ns)
    return int(exposed_ns.sum())


def _hidden(signals: Signals, transfer_share: float) -> Shorten:
    """Shorten every collective by the exposed part of its transfer."""
    collectives = collectives_of(signals)
    exposed_ns = (collectives.exposed_ns * transfer_share).astype(np.int64)
    return Shorten(collectives.row, collectives.duration_ns - exposed_ns)


def _transfer_share(signals: Signals) -> float | None:
    """Share of collective time that is transfer, weighted by exposure; None if unknown."""
    collectives = collectives_of(signals)
    known = (collectives.transfer_ns >= 0) & (collectives.duration_ns > 0)
    weight = collectives.exposed_ns[known].sum()
    if weight == 0 or weight < 0.9 * collectives.exposed_ns.sum():
        return None
    transfer = collectives.transfer_ns[known] / collectives.duration_ns[known]
    return float((transfer * collectives.exposed_ns[known]).sum() / weight)


def _by_operation(signals: Signals) -> Table:
    collectives = collectives_of(signals)
    rows: list[tuple[str, int | None, int | None, int, int]] = []
    for operation in sorted(collectives.operation.texts):
        is_operation = collectives.of(operation)
        whole = is_operation & ~collectives.is_start
        sizes = collectives.size_bytes[whole]
        rows.append(
            (
                operation,
                event_count(signals.trace, int(whole.sum())),
                int(sizes[sizes >= 0].sum()) if (sizes >= 0).all() else None,
                int(collectives.duration_ns[is_operation].sum()),
                int(collectives.exposed_ns[is_operation].sum()),
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        "Collectives in the analyzed steps",
        (
            Column("operation", "Operation"),
            Column("count", "Count", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("duration_ns", "Duration", "ns"),
            Column("exposed_ns", "Exposed", "ns"),
        ),
        tuple(ranked),
    )
