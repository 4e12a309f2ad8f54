"""The program sees devices that it does not use."""

from __future__ import annotations

from collections.abc import Iterable

from tb_perfadvisor.advice import advise
from tb_perfadvisor.rules.base import Rule
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Need, Signals
from tb_perfadvisor.signals.core.devices_in_use import unused_devices


class UnusedDevices(Rule):
    """The program sees devices on which it runs nothing.

    What it finds
    -------------
    Devices that the profile describes but on which no kernel ran during the recording.

    Why it matters
    --------------
    They are reserved and paid for, and no other job can use them. Some frameworks also take most
    of their memory.

    How it is measured
    ------------------
    Devices with a description (memory or processors) are compared with devices that have kernels,
    collectives or copies, on the host of this report. If names of operators number more replicas
    of the model than there are devices with kernels, the recording lacks work, and nothing is
    reported. PyTorch trains with one process per device, and
    each process lists all devices, so its profiles are judged only if one process uses several
    devices. There is no saving in step time: what a second device gains depends on the model.

    When to ignore
    --------------
    When other processes use the devices, or they worked before or after the profile.

    How to verify
    -------------
    Every device has kernels in the next profile, or is no longer listed.

    References:
    ----------
    TensorFlow guide, "Distributed training with TensorFlow"; JAX documentation, "Introduction to
    parallel programming".
    """

    id = "unused-devices"
    title = "Use every device, or release it"
    category = "placement"
    needs = (Need.DEVICE_EVENTS, Need.ALL_DEVICES)
    is_preview = False

    def check(self, signals: Signals) -> Iterable[Finding]:
        """Yield a finding when a described device ran nothing."""
        used, unused = signals.device.used, unused_devices(signals.trace)
        if not unused or used == 0:
            return
        visible = used + len(unused)
        yield Finding(
            instance=f"{len(unused)} of {visible} are unused",
            summary=(
                f"{len(unused)} of {visible} devices that the program sees"
                f" {'is' if len(unused) == 1 else 'are'} unused."
            ),
            evidence=(
                Table(
                    "Devices without work",
                    (
                        Column("device", "Device", "count"),
                        Column("name", "Name"),
                        Column("memory_bytes", "Memory", "bytes"),
                    ),
                    tuple((device.index, device.name, device.memory_bytes) for device in unused),
                ),
            ),
            remedies=advise("all-devices", "visible-devices"),
            severity="medium" if 2 * used <= visible else "low",
        )
