"""The host waits for the device in the middle of a step."""

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
from tb_perfadvisor.rules.evidence import Column, Table, costliest
from tb_perfadvisor.signals import Cause, Need, Signals
from tb_perfadvisor.signals.signals import HOST_CAUSED
from tb_perfadvisor.trace.intervals import intersect, total_ns
from tb_perfadvisor.whatif import Async, Simulation, simulation

_REMEDIES = (
    Remedy(
        text=(
            "Keep values on the device until they are needed: no `.item()`, `.cpu()`, "
            "`nonzero()` or printing of tensors in the step."
        ),
        snippet=(
            "# instead of: if loss.item() > limit: ...\n"
            "total += loss.detach()            # accumulate on the device\n"
            "mask = torch.where(x > 0, x, 0.)  # instead of x[x > 0], which asks for a size"
        ),
        framework="pytorch",
        reference="https://pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    ),
    Remedy(
        text="Copy to the device from pinned memory without waiting.",
        snippet="batch = batch.to(device, non_blocking=True)  # with pin_memory=True in the loader",
        framework="pytorch",
        reference="https://pytorch.org/tutorials/intermediate/pinmem_nonblock.html",
    ),
    Remedy(
        text="Return tensors from the step, and call .numpy() on them only when you report.",
        snippet="if step % 100 == 0:\n    print(float(loss))",
        framework="tensorflow",
        reference="https://www.tensorflow.org/guide/gpu_performance_analysis",
    ),
    Remedy(
        text="Read results back every so many steps: float() and np.asarray() wait.",
        snippet="if step % 100 == 0:\n    print(float(jax.device_get(loss)))",
        framework="jax",
        reference="https://docs.jax.dev/en/latest/async_dispatch.html",
    ),
)


class DeviceSynchronisation(Rule):
    """The host waits for the device, and the device then waits for the host.

    What it finds
    -------------
    Calls that wait for the device (stream, event and device synchronisation, blocking copies)
    after which the device idles until new work has been launched; by call site.

    Why it matters
    --------------
    The host normally runs ahead and keeps the device's queue filled. A wait in the middle of a
    step drains the queue; all launch latency that was hidden before becomes visible.

    How it is measured
    ------------------
    The steps are re-timed without the waits: the host runs ahead, as far as nothing else holds
    it up, and the step is shorter by what the device then idles less. Low is the idle that the
    waits induce at once, expected and high are what re-timing shows. Where a profile does not
    allow that, expected is the idle that a wait *induces*: idle inside the call, and from its
    return to the first device event launched after it, for no longer than the call took
    (without it the host would be ahead by that much); low is the idle inside the calls. A
    call's own duration costs nothing while the device works. Input, and in the second case
    time between steps and queued work, do not count.

    When to ignore
    --------------
    When the value is needed to decide what to compute next (the sizes that `nonzero` and masks
    ask for), or when the wait at the end of a step is the one place where the program keeps
    from running too far ahead.

    How to verify
    -------------
    Run with the wait removed or moved out of the step: the device's idle time after it
    disappears. `torch.cuda.set_sync_debug_mode("warn")` names the lines that wait.

    References:
    ----------
    PyTorch documentation, "Performance Tuning Guide: Avoid unnecessary CPU-GPU
    synchronization"; NVIDIA CUDA Runtime API, "API synchronization behavior".
    """

    id = "device-synchronisation"
    title = "Stop waiting for the device inside the step"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "A wait or two per step, for logging, costs well under one per cent."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when waits induce idle time."""
        waits = signals.synchronisations
        saving, summary = _retimed(signals) or _induced(signals)
        if share_of_window(saving.expected_ns, signals) < self.limit("minimum_share"):
            return
        if saving.expected_ns == 0:
            return
        guilty = waits.induced_ns > 0
        cost = np.where(guilty, waits.induced_ns, 0) if guilty.any() else waits.duration_ns
        shown = guilty if guilty.any() else np.ones_like(guilty)
        yield Finding(
            summary=summary,
            saving=saving,
            evidence=(
                _by_site(signals),
                costliest("The costliest waits", signals.worker, waits.row[shown], cost[shown]),
            ),
            remedies=_REMEDIES,
        )


def _retimed(signals: Signals) -> tuple[Saving, str] | None:
    """What the steps would save without the waits; None where they cannot be re-timed."""
    waits, steps = signals.synchronisations, simulation(signals)
    if not isinstance(steps, Simulation):
        return None
    fix = Async(waits.row)
    saved_ns = steps.saved_ns(fix)
    # Without the waits the host runs ahead, and any idle that it causes later may close.
    claims = signals.attribution.of(*HOST_CAUSED, Cause.QUEUED, Cause.BETWEEN_STEPS)
    if saved_ns > total_ns(claims):
        return None
    low_ns = min(total_ns(waits.induced), saved_ns)
    return Saving(low_ns, saved_ns, saved_ns, claims, "simulated", (fix,)), (
        f"{count_per_step(len(waits), 'wait', signals)} keep the host from running ahead of the"
        f" device, which costs {per_step(saved_ns, signals)}."
    )


def _induced(signals: Signals) -> tuple[Saving, str]:
    """The idle that waits induce at once."""
    waits = signals.synchronisations
    induced_ns = total_ns(waits.induced)
    inside = intersect(waits.induced, signals.attribution.intervals[Cause.SYNCHRONIZATION])
    return Saving(total_ns(inside), induced_ns, induced_ns, waits.induced, "measured"), (
        f"{count_per_step(int((waits.induced_ns > 0).sum()), 'wait', signals)} leave the device"
        f" idle for {per_step(induced_ns, signals)}."
    )


def _by_site(signals: Signals) -> Table:
    """Induced idle by the operator around the wait, the call and the source line."""
    trace, waits = signals.trace, signals.synchronisations
    operator = signals.launching_operator[waits.row]
    # Waits under one event share its source line.
    parents, inverse = np.unique(trace.events.parent[waits.row], return_inverse=True)
    examples = waits.row[np.unique(inverse, return_index=True)[1]]
    lines = [signals.source_line(int(row)) for row in examples.tolist()] if len(parents) else []
    sites: dict[tuple[str, str, str | None], list[int]] = {}
    for row, place, around, duration, induced in zip(
        waits.row.tolist(),
        inverse.tolist(),
        operator.tolist(),
        waits.duration_ns.tolist(),
        waits.induced_ns.tolist(),
        strict=True,
    ):
        name = trace.name(around) if around >= 0 else "(no operator)"
        key = (name, trace.name(row), lines[place])
        total = sites.setdefault(key, [0, 0, 0])
        total[0] += 1
        total[1] += duration
        total[2] += induced
    # Without stacks no line is known: a column of dashes would say nothing.
    knows_lines = any(line is not None for line in lines)
    ranked = sorted(sites.items(), key=lambda site: -site[1][2])
    return Table(
        "Where the host waits",
        (
            Column("operator", "Operator"),
            Column("call", "Call"),
            *((Column("source", "Source line"),) if knows_lines else ()),
            Column("count", "Times", "count"),
            Column("duration_ns", "In the call", "ns"),
            Column("induced_ns", "Idle induced", "ns"),
        ),
        tuple((*(site if knows_lines else site[:2]), *total) for site, total in ranked),
    )
