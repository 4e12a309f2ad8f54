"""The host waits for the device in the middle of the backward pass."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.amounts import count_per_step, per_step
from tb_perfadvisor.rules.base import Limit, Rule
from tb_perfadvisor.rules.evidence.synchronization import (
    costliest_waits,
    if_not_needed,
    waits_by_call_site,
)
from tb_perfadvisor.rules.evidence.synchronization_causes import changes_for
from tb_perfadvisor.rules.finding import Finding
from tb_perfadvisor.rules.savings.synchronization import most_saved_ns, saving_without_waits
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.host.wait_call_sites import WaitCallSite, wait_call_sites, wait_count

_MOST_CHANGES = 3


class BackwardSynchronization(Rule):
    """A backward operator waits for the device, and afterwards the device waits for the host.

    What it finds
    -------------
    Calls that wait for the device inside an autograd node: which node, the forward operator that
    created it, and that operator's module and source line.

    Why it matters
    --------------
    The call that waits is not in your code: autograd derived it from a forward operator, and you
    cannot put a range around a backward operator. So the wait stays in every step, and the
    backward pass, which has most of the work, loses its lead over the device.

    How it is measured
    ------------------
    As in `device-synchronization`, for these waits alone: the steps are replayed without them, or,
    without a replay, it is the idle time that they induce. A node is matched to its forward
    operator by autograd's sequence number and forward thread, and that operator to the innermost
    `nn.Module:` range around it: a Python frame, if stacks were recorded, or a label of
    `tb_perfadvisor.instrument.torch.annotate`.

    When to ignore
    --------------
    When you need reproducible gradients and the operator has no other deterministic form.

    How to verify
    -------------
    Replace the forward operator and record again: the node has another name, and no
    synchronization lies within it.

    References:
    ----------
    PyTorch documentation, "Autograd mechanics" and `torch.use_deterministic_algorithms`;
    torch/csrc/autograd/engine.cpp.
    """

    id = "backward-synchronization"
    title = "Take the waits out of the backward pass"
    category = "launch"
    needs = (Need.DEVICE_EVENTS, Need.LAUNCH_LINKS, Need.PYTORCH)
    refines = "device-synchronization"

    minimum_share = Limit(
        0.01, "share", "Rewriting a forward operator is not worth it for less than 1 % of the step."
    )

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when waits in the backward pass induce idle time."""
        waits = signals.synchronizations
        if self.is_minor(most_saved_ns(signals), signals):
            return
        is_backward = signals.origins.node[waits.row] >= 0
        if not is_backward.any():
            return
        saving = saving_without_waits(signals, is_backward)
        if self.is_minor(saving.high_ns, signals):
            return
        sites = tuple(site for site in wait_call_sites(signals) if site.node)
        yield Finding(
            instance=_place(sites[0]),
            summary=(
                "Waiting for the device in the backward pass costs"
                f" {per_step(saving.expected_ns, signals)}:"
                f" {count_per_step(wait_count(sites), 'wait', signals)}, mostly in"
                f" {_place(sites[0])}, without which the host would run ahead"
                f"{if_not_needed(saving, signals)}."
            ),
            saving=saving,
            evidence=(
                waits_by_call_site(
                    "Where the backward pass waits", signals, sites, is_backward, saving
                ),
                costliest_waits(signals, is_backward, saving),
            ),
            remedies=advise(*changes_for(sites, _MOST_CHANGES), "change-forward"),
        )


def _place(site: WaitCallSite) -> str:
    """`GatherBackward0 of aten::gather (PatchDropout_0, model.py:47 forward)`."""
    location = ", ".join(part for part in (site.module, site.line) if part)
    forward = f" of {site.forward}" if site.forward else ""
    return f"{site.node}{forward}{f' ({location})' if location else ''}"
