"""The host waits for the device in the middle of a step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.synchronization import (
    costliest_waits,
    if_not_needed,
    main_causes,
    waits_by_call_site,
)
from tb_perfadvisor.rules.evidence.synchronization_causes import changes_for
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.synchronization import most_saved_ns, saving_without_waits
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.wait_call_sites import wait_call_sites, wait_count

_MOST_CHANGES = 4
"""For known causes; the table lists all of them."""

_FOR_UNKNOWN_CAUSES = ("overlapped-schedule", "keep-on-device")


class DeviceSynchronization(Rule):
    """The host waits for the device, and afterwards the device waits for the host.

    What it finds
    -------------
    Calls that wait for the device (stream, event and device synchronization, blocking copies)
    after which the device idles until new work has been launched. In JAX, these are `float()`,
    `jax.device_get()`, `np.asarray()` and `block_until_ready()`, also if the program runs on the
    CPU. They are listed by call site, with the module, the source line and the known cause where
    the profile shows them.

    Why it matters
    --------------
    Normally the host runs ahead and keeps the device's queue filled. A wait in the middle of a
    step drains the queue, and all launch latency that was hidden before becomes visible.

    How it is measured
    ------------------
    The steps are replayed without the waits: the host runs ahead as far as nothing else stops it,
    and the step gets shorter by the idle time that disappears. High is what that saves if the
    program needs none of the values that it waits for.

    Expected is what the waits cost one by one. While the host waits, it could prepare what comes
    next: without a wait of 1 ms, it would be 1 ms ahead. After the wait its lead is zero, and grows
    back only as much as it launches faster than the device executes. So a wait costs the idle time
    from it to the next wait, but no more than its own duration. What is left of the lead would
    serve after the next wait, unless that stays.

    A profile does not show whether a wait may go, because it does not show whether the program
    needs the value that it waits for. After some waits, host code runs for at least 150
    microseconds and ten times as long as usual between two launches. It may work on the value, so
    these waits stay and are only put off. After the others, the program reads a size or a number,
    or nothing. The table has two prices of each wait, one if the program needs these values, and
    one if it does not. Expected is the middle, and the rows add up to it. Low is the idle time
    that waits *induce* which hand over nothing, to the host or to the operator that waits: idle
    time inside the call, and from its return to the first device event launched after it, but
    for no longer than the call took.

    Where an idle device starts launched work late each time, as on virtual machines, that delay
    counts as well: it shows only because the wait has let the queue run empty.

    If the profile cannot be replayed, high is the idle time that the waits induce. On the CPU,
    expected is that, too, but half of what follows a call, because the host shares its cores with
    the work that it would overlap; and the time after a wait counts only if the next program runs
    within two milliseconds: longer stretches of host code have findings of their own.
    The duration of a call costs nothing while the device works. Waiting for input is not counted,
    and neither is what happens only once, such as loading code.

    When to ignore
    --------------
    When the value decides what to compute next (such as the sizes that `nonzero` and masks need),
    or when a wait at the end of a step is what keeps the program from running too far ahead.

    How to verify
    -------------
    Remove the wait, or move it out of the step: the idle time after it disappears.
    `torch.cuda.set_sync_debug_mode("warn")` names the lines that wait.

    References:
    ----------
    PyTorch documentation, "Performance Tuning Guide: Avoid unnecessary CPU-GPU synchronization";
    NVIDIA CUDA Runtime API, "API synchronization behavior".
    """

    id = "device-synchronization"
    title = "Stop waiting for the device"
    category = "launch"
    reads_sums = True
    needs = (Need.LAUNCHED_WORK,)
    is_preview = False

    minimum_share = Limit(
        0.01, "share", "One or two waits per step for logging cost well under 1 %."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when waits induce idle time."""
        if self.is_minor(most_saved_ns(signals), signals):
            return
        all_waits = np.ones(len(signals.synchronizations), dtype=np.bool_)
        saving = saving_without_waits(signals, all_waits)
        if self.is_minor(saving.high_ns, signals):
            return
        sites = wait_call_sites(signals)
        costly = tuple(site for site in sites if site.induced_ns > 0) or sites
        subject = "Waiting for the device"
        if signals.device.is_host_only:
            subject = "Waiting for results"
        specific = changes_for(costly, _MOST_CHANGES)
        yield Finding(
            instance=f"{count_per_step(wait_count(sites), 'wait', signals)}{main_causes(sites)}",
            summary=(
                f"{subject} costs {per_step(saving.expected_ns, signals)}, because the"
                f" host cannot run ahead{if_not_needed(saving, signals)}."
            ),
            saving=saving,
            evidence=(
                waits_by_call_site("Where the host waits", signals, sites, all_waits, saving),
                costliest_waits(signals, all_waits, saving),
            ),
            remedies=advise(
                *(specific or _FOR_UNKNOWN_CAUSES), "tensors-from-step", "read-arrays-rarely"
            ),
        )
