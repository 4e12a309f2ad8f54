"""Parameters and optimizer state that every device of a program updates alike."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.rules.base import Limit
from tb_perfadvisor.rules.faster_operations import FasterOperations
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.program.devices import repeated_updates, with_split_updates
from tb_perfadvisor.signals.program.graph import FasterOperation
from tb_perfadvisor.units import format_bytes


class RepeatedUpdates(FasterOperations):
    """Every device updates all of the parameters and of the optimizer's state.

    What it finds
    -------------
    Programs on several devices that update arguments of a mebibyte or more in place, where neither
    the arguments nor the gradients differ between the devices. The embedded program states how
    arguments are split, and what was reduced over all devices.

    Why it matters
    --------------
    An update reads and writes the parameters and two or three times as many bytes of state. If each
    device updates its part, the others' are gathered afterwards. That also divides the memory of
    the state.

    How it is measured
    ------------------
    High is the time of the updates but for the part of one device. Gradients are reduced and
    scattered then instead of all-reduced, and what was updated is gathered, which sends as many
    bytes in all, but later: expected is less by half of the time of the all-reduces, and low by all
    of it.

    When to ignore
    --------------
    When the update needs whole parameters, as Muon and Shampoo do.

    How to verify
    -------------
    The arrays of the optimizer's state are smaller by the number of devices.

    References:
    ----------
    Xu et al., "Automatic cross-replica sharding of weight update in data-parallel training" (2020).
    """

    id = "repeated-updates"
    title = "Let each device update a part of the parameters"

    minimum_share = Limit(0.03, "share", "Splitting the state is a larger change than an argument.")

    noun = "operation"
    changes = ("state-over-devices",)

    def faster(self, signals: Signals) -> Sequence[FasterOperation]:
        """The updates that are the same everywhere."""
        return with_split_updates(signals)

    def describe(self, signals: Signals, cost: str) -> tuple[str, str]:
        """How many devices update what."""
        found = max(repeated_updates(signals), key=lambda one: one.updated_bytes)
        devices, size = found.running.program.devices, format_bytes(found.updated_bytes)
        return f"{size} on each of {devices} devices", (
            f"{cost} goes into updating {size} of parameters and state, the same on each of"
            f" {devices} devices."
        )
