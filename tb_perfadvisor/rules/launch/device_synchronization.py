"""The host waits for the device in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.synchronization import (
    costliest_waits,
    main_causes,
    waits_by_call_site,
)
from tb_perfadvisor.rules.evidence.synchronization_causes import remedies_for
from tb_perfadvisor.rules.finding import Finding, Remedy
from tb_perfadvisor.rules.savings.synchronization import most_saved_ns, saving_without_waits
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.wait_call_sites import wait_call_sites, wait_count

_MOST_REMEDIES = 4
"""Of causes: the rest is in the table."""

_ANY = (
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
)
_OTHERS = (
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


class DeviceSynchronization(Rule):
    """The host waits for the device, and the device then waits for the host.

    What it finds
    -------------
    Calls that wait for the device (stream, event and device synchronization, blocking copies)
    after which the device idles until new work has been launched; by call site, with the module
    and the source line where the profile tells them, and the known cause of each.

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

    id = "device-synchronization"
    title = "Stop waiting for the device inside the step"
    category = "launch"
    reads_sums = True
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "A wait or two per step, for logging, costs well under one percent."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when waits induce idle time."""
        if self.is_minor(most_saved_ns(signals), signals):
            return
        everything = np.ones(len(signals.synchronizations), dtype=np.bool_)
        saving = saving_without_waits(signals, everything)
        if self.is_minor(saving.expected_ns, signals):
            return
        if saving.expected_ns == 0:
            return
        sites = wait_call_sites(signals)
        costly = tuple(site for site in sites if site.induced_ns > 0) or sites
        known = remedies_for(costly, _MOST_REMEDIES)
        yield Finding(
            summary=(
                f"{count_per_step(wait_count(sites), 'wait', signals)}{main_causes(sites)} keep the"
                " host from running ahead of the device, which costs"
                f" {per_step(saving.expected_ns, signals)}."
            ),
            saving=saving,
            evidence=(
                waits_by_call_site("Where the host waits", sites),
                costliest_waits(signals, everything),
            ),
            remedies=(*known, *_OTHERS) if known else (*_ANY, *_OTHERS),
        )
