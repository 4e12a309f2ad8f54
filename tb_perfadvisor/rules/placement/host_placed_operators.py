"""Operators that compute on the host while the device idles."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.rules.amounts import per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.tables import events_by_name
from tb_perfadvisor.rules.finding import Column, Finding, Remedy, Saving, costliest
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.trace.intervals import intersect, overlap_ns, total_ns, union
from tb_perfadvisor.units import format_share
from tb_perfadvisor.whatif import shrink

_REMEDIES = (
    Remedy(
        text="Create tensors on the device and keep them there.",
        snippet=(
            "mask = torch.ones(batch, length, device=x.device)  # not torch.ones(...).to(device)\n"
            "module = module.to(device)                         # losses and metrics as well"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    Remedy(
        text="See which operators have no device kernel, and replace or fuse those.",
        snippet=(
            "tf.debugging.set_log_device_placement(True)\n"
            "tf.config.set_soft_device_placement(False)  # fails where a kernel is missing"
        ),
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/gpu",
    ),
    Remedy(
        text="Use jax.numpy in place of numpy inside the step, and pass arrays, not lists.",
        snippet="x = jnp.asarray(x)  # once, before the step; then jnp functions only",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/notebooks/Common_Gotchas_in_JAX.html",
    ),
)


class HostPlacedOperators(Rule):
    """Operators run on the host that could run on the device, which idles meanwhile.

    What it finds
    -------------
    Operators of the step that launched no device work and yet compute, weighted by the idle
    time of the device under them. Operators of the input pipeline are not meant.

    Why it matters
    --------------
    A tensor on the host drags the computation there: a loss, a mask, a metric. The device
    waits for the result, and the copies to and fro cost as well.

    How it is measured
    ------------------
    Device idle that the host caused, under the outermost host-placed operators of the threads
    that launch. High is all of it; expected leaves each operator the cost of a launch, and is
    re-timed so where the profile allows it; low leaves twice that.

    When to ignore
    --------------
    For bookkeeping on tiny tensors that must be on the host: sampling, tokenizing, logging.

    How to verify
    -------------
    After the change the operators have kernels beneath them, the share of operators on the
    device rises, and the idle under them is gone.

    References:
    ----------
    TensorFlow guide, "Use a GPU: Logging device placement"; PyTorch documentation,
    "Performance Tuning Guide: Create tensors directly on the target device".
    """

    id = "host-placed-operators"
    title = "Move these operators to the device"
    category = "placement"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.HOST_EVENTS, Need.LAUNCH_LINKS)
    is_preview = True

    minimum_share = Limit(
        0.02, "share", "Scalars and sizes are handled on the host in every program."
    )
    launch_cost_ns = Limit(
        10_000, "ns", "An eager operator costs 5-20 microseconds of host time wherever it runs."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when the device waits for operators on the host."""
        trace, placement = signals.trace, signals.placement
        rows = placement.host_rows
        events = trace.events
        start, end = events.start_ns[rows], events.end_ns[rows]
        claims = intersect(signals.host_idle, union(start, end))
        idle_ns = total_ns(claims)
        if self.is_minor(idle_ns, signals):
            return
        idle = overlap_ns(claims, start, end)
        rows, idle = rows[idle > 0], idle[idle > 0]
        launch_ns = round(len(rows) * self.launch_cost_ns)
        by_time = placement.share_by_time
        yield Finding(
            summary=(
                f"The device idles {per_step(idle_ns, signals)} while operators run on the host;"
                f" of the operators' time {format_share(by_time)} is on the device."
            ),
            saving=Saving(
                max(idle_ns - 2 * launch_ns, 0),
                max(idle_ns - launch_ns, 0),
                idle_ns,
                claims,
                "measured",
                (shrink(start, end, round(self.launch_cost_ns)),),
            ),
            evidence=(
                events_by_name(
                    "Operators on the host",
                    "Operator",
                    trace,
                    rows,
                    (
                        (Column("duration_ns", "Duration", "ns"), events.duration_ns[rows]),
                        (Column("idle_ns", "Device idle meanwhile", "ns"), idle),
                    ),
                ),
                costliest("The costliest", signals.worker, rows, idle),
            ),
            remedies=_REMEDIES,
        )
