"""Transfers between TPU slices that the network cannot carry in the time they are given."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.tpu.cross_slice import CrossSlice, cross_slice
from tb_perfadvisor.trace.integer_groups import distinct
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.trace.tables import Int64
from tb_perfadvisor.units import NS_PER_S

_REMEDIES = (
    Remedy(
        text="Reduce across slices less often, or fewer bytes: accumulate gradients over several "
        "batches, and send them in 16 bits.",
        snippet=(
            "optimizer = optax.MultiSteps(optimizer, every_k_schedule=4)\n"
            "grads = jax.tree.map(lambda g: g.astype(jnp.bfloat16), grads)"
        ),
        framework="jax",
        reference="https://optax.readthedocs.io/en/latest/api/optimizer_wrappers.html",
    ),
    Remedy(
        text="Let only data parallelism cross slices: shard the model within one.",
        snippet=(
            "devices = mesh_utils.create_hybrid_device_mesh(\n"
            "    mesh_shape=(1, chips_per_slice), dcn_mesh_shape=(slices, 1)\n"
            ")\n"
            "mesh = jax.sharding.Mesh(devices, ('data', 'model'))"
        ),
        framework="jax",
        reference="https://docs.jax.dev/en/latest/jax.experimental.mesh_utils.html",
    ),
)


class SlowCrossSlice(Rule):
    """Transfers between slices take longer than the compute that they run beside.

    What it finds
    -------------
    Waits for transfers over the data-center network between TPU slices, with the bandwidth that
    would have been needed to be ready in time.

    Why it matters
    --------------
    The network between slices is slower by far than the links within one. What it cannot carry
    while the core computes, every core waits for.

    How it is measured
    ------------------
    Each wait (`recv-done`, `send-done`) is joined to its start. The time between is the slack:
    bytes over slack is the bandwidth that was needed, bytes over slack and wait together no more
    than what there was. High is the part of the cause *communication* in the waits, expected
    half of it, low 0: how much of a wait is for a late slice is not in the profile.

    When to ignore
    --------------
    When one slice is late: compare the slices' steps first.

    How to verify
    -------------
    The bandwidth that is needed falls below what the network carries; the waits are gone.

    References:
    ----------
    OpenXLA, XProf documentation, "Megascale stats"; Google Cloud, "Cloud TPU Multislice
    overview".
    """

    id = "slow-cross-slice"
    title = "Send less between slices, or earlier"
    category = "xla"
    refines = "exposed-communication"
    needs = (Need.DEVICE_EVENTS, Need.COLLECTIVES, Need.TILED_LAYOUTS)

    minimum_share = Limit(
        0.02, "share", "The last transfer of a step has little left to run beside."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when cores wait for the network between slices."""
        events, transfers = signals.trace.events, cross_slice(signals)
        done = transfers.done
        claims = intersect(
            signals.attribution.intervals[Cause.COMMUNICATION],
            union(events.start_ns[done], events.end_ns[done]),
        )
        waited_ns = total_ns(claims)
        if self.is_minor(waited_ns, signals):
            return
        cost_ns = overlap_ns(claims, events.start_ns[done], events.end_ns[done])
        yield Finding(
            summary=(
                f"{per_step(waited_ns, signals)} waits for transfers between slices"
                f" ({count_per_step(len(done), 'wait', signals)})."
            ),
            saving=Saving(0, waited_ns // 2, waited_ns, claims, "heuristic"),
            evidence=(
                _table(signals, transfers, cost_ns),
                costliest("The longest waits", signals.worker, done, cost_ns),
            ),
            remedies=_REMEDIES,
        )


def _table(signals: Signals, transfers: CrossSlice, cost_ns: Int64) -> Table:
    """Each transfer's bytes and bandwidth, needed and had; what was waited for longest first."""
    trace = signals.trace
    rows: list[tuple[str, int, int, int, int, float | None, float | None]] = []
    for op in distinct(transfers.op).tolist():
        own = transfers.op == op
        sent, slack_ns = int(transfers.size_bytes[own].sum()), int(transfers.between_ns[own].sum())
        whole_ns = slack_ns + int(trace.events.duration_ns[transfers.done[own]].sum())
        rows.append(
            (
                trace.text(int(trace.hlo.name[op])),
                int(own.sum()),
                sent,
                slack_ns,
                int(cost_ns[own].sum()),
                sent * NS_PER_S / slack_ns if slack_ns else None,
                sent * NS_PER_S / whole_ns if whole_ns else None,
            )
        )
    ranked = sorted(rows, key=lambda row: -row[4])
    return Table(
        "Transfers between slices",
        (
            Column("op", "Operation"),
            Column("count", "Times", "count"),
            Column("size_bytes", "Bytes", "bytes"),
            Column("slack_ns", "Slack", "ns"),
            Column("waited_ns", "Waited", "ns"),
            Column("needed", "Bandwidth needed", "bytes/s"),
            Column("had", "Bandwidth had", "bytes/s"),
        ),
        tuple(ranked),
    )
