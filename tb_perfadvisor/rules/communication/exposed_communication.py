"""Communication that nothing overlaps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.base import (
    Finding,
    Limit,
    Remedy,
    Rule,
    Saving,
    count_per_step,
    per_step,
    share_of_window,
)
from tb_perfadvisor.rules.evidence.evidence import Column, Table, costliest
from tb_perfadvisor.rules.evidence.tables import times
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.ranks.messages import link_of_group, wire_bytes
from tb_perfadvisor.trace.intervals import total_ns
from tb_perfadvisor.units import NS_PER_S, format_duration, format_share
from tb_perfadvisor.whatif import Shorten

_REMEDIES = (
    Remedy(
        text="Let gradient buckets go out while the backward pass still runs.",
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
        text="Synchronize gradients once per accumulated batch, not in every micro-batch.",
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
        text="Let XLA's latency-hiding scheduler move collectives beside compute.",
        snippet='os.environ["XLA_FLAGS"] = "--xla_gpu_enable_latency_hiding_scheduler=true"',
        framework="jax",
        reference="https://docs.jax.dev/en/latest/gpu_performance_tips.html",
    ),
    Remedy(
        text="Give each device a larger batch: the bytes to reduce stay the same, and there is "
        "more compute to hide them behind.",
        snippet="global_batch = 2 * batch_per_device * jax.device_count()",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/sharded-computation.html",
    ),
    Remedy(
        text="Give each replica a larger batch: the bytes to reduce stay the same, and there is "
        "more compute to hide them behind.",
        snippet="global_batch = 2 * batch_per_replica * strategy.num_replicas_in_sync",
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/distributed_training",
    ),
    Remedy(
        text="Use NCCL for all-reduce across GPUs, and pack gradients.",
        snippet=(
            "strategy = tf.distribute.MirroredStrategy(\n"
            "    cross_device_ops=tf.distribute.NcclAllReduce(num_packs=1)\n"
            ")"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/distributed_training",
    ),
)


_OF_GPUS = ("xla_gpu", "Nccl")
"""What names remedies that GPUs alone have."""
_ALL = 0.9995
"""What is written as 100.0 %."""


class ExposedCommunication(Rule):
    """Collectives run while no compute does.

    What it finds
    -------------
    Time of collectives that no compute on the device overlaps, split into transfer and
    waiting for other ranks where all ranks' profiles are there.

    Why it matters
    --------------
    Communication beside compute is nearly free; communication that the step waits for is
    paid in full, on every rank.

    How it is measured
    ------------------
    The exclusive time of the cause *communication*. With all ranks at hand, a collective's
    transfer is its shortest duration over the ranks and the rest is waiting, which overlap
    does not cure: expected and high are the exposed transfer, or what the steps save when they
    are re-timed with collectives that are shorter by it. Otherwise how much is waiting is
    unknown: transfer is at least what the bytes need on the link (where both are known) and at
    most all exposed time, which is high; expected is the middle of the two. Low is always 0:
    exposed is not yet blocking, and there may be too little compute to hide behind.

    When to ignore
    --------------
    On one step with an unusual collective: a checkpoint, an evaluation, a barrier.

    How to verify
    -------------
    Exposed communication falls while the collectives' own time stays; the step falls with it.

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
        0.03, "share", "The last bucket of gradients has nothing left to hide behind."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a good part of the step only communicates."""
        attribution, collectives = signals.attribution, signals.collectives
        claims = attribution.intervals[Cause.COMMUNICATION]
        exposed_ns = total_ns(claims)
        share = share_of_window(exposed_ns, signals)
        if exposed_ns == 0 or share < self.limit("minimum_share"):
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
                costliest(
                    "The most exposed collectives",
                    signals.worker,
                    collectives.row,
                    collectives.exposed_ns,
                ),
            ),
            remedies=tuple(
                one
                for one in _REMEDIES
                if has_gpu or not any(name in one.snippet for name in _OF_GPUS)
            ),
        )


def _on_waiting(signals: Signals, split: float | None, wire_ns: int) -> str:
    unknown = "how much of it is waiting for other ranks is unknown without all ranks' profiles"
    if split is None and wire_ns:
        least = format_duration(wire_ns / signals.steps.count)
        return f"{least} at least is transfer, by its bytes over the link; {unknown}"
    if split is None:
        return unknown
    others = "ranks" if len(signals.run.traces) > 1 else "devices"
    waiting = format_share(1 - split) if split < _ALL else "nothing"
    return f"{waiting} of the collectives' time is waiting for other {others}"


def _wire_ns(signals: Signals) -> int:
    """What of the exposed time the collectives' bytes need on the link, as far as both are known.

    What is sent beside compute is taken to be what is covered.
    """
    collectives = signals.collectives
    needed_ns = wire_bytes(signals) / link_of_group(signals) * NS_PER_S
    covered_ns = collectives.duration_ns - collectives.exposed_ns
    exposed_ns = np.clip(np.nan_to_num(needed_ns) - covered_ns, 0, collectives.exposed_ns)
    return int(exposed_ns.sum())


def _hidden(signals: Signals, transfer_share: float) -> Shorten:
    """Every collective without the part of its transfer that nothing overlaps."""
    collectives = signals.collectives
    exposed_ns = (collectives.exposed_ns * transfer_share).astype(np.int64)
    return Shorten(collectives.row, collectives.duration_ns - exposed_ns)


def _transfer_share(signals: Signals) -> float | None:
    """What part of the collectives' time is transfer, weighted by exposure; None if unknown."""
    collectives = signals.collectives
    known = (collectives.transfer_ns >= 0) & (collectives.duration_ns > 0)
    weight = collectives.exposed_ns[known].sum()
    if weight == 0 or weight < 0.9 * collectives.exposed_ns.sum():
        return None
    transfer = collectives.transfer_ns[known] / collectives.duration_ns[known]
    return float((transfer * collectives.exposed_ns[known]).sum() / weight)


def _by_operation(signals: Signals) -> Table:
    collectives = signals.collectives
    rows: list[tuple[str, int | None, int | None, int, int]] = []
    for operation in sorted(collectives.operation.texts):
        own = collectives.of(operation)
        whole = own & ~collectives.is_start
        sizes = collectives.size_bytes[whole]
        rows.append(
            (
                operation,
                times(signals.trace, int(whole.sum())),
                int(sizes[sizes >= 0].sum()) if (sizes >= 0).all() else None,
                int(collectives.duration_ns[own].sum()),
                int(collectives.exposed_ns[own].sum()),
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        "Collectives in the used steps",
        (
            Column("operation", "Operation"),
            Column("count", "Times", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("duration_ns", "Duration", "ns"),
            Column("exposed_ns", "Exposed", "ns"),
        ),
        tuple(ranked),
    )
