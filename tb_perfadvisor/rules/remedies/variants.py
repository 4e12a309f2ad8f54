"""Puts the variants of one change together."""

from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.rules.finding import Remedy
from tb_perfadvisor.signals.workload.parts import Part


def variants(
    change: str,
    *remedies: Remedy,
    framework: str = "pytorch",
    unless: tuple[Part, ...] = (),
) -> tuple[Remedy, ...]:
    """The variants of one change; a program is shown the first one that fits.

    Args:
        change: The name of the change.
        remedies: The special ones first.
        framework: For remedies that name none.
        unless: Parts that make every variant pointless or wrong.
    """
    return tuple(
        replace(
            remedy,
            change=change,
            framework=remedy.framework or framework,
            unless=(*remedy.unless, *unless),
        )
        for remedy in remedies
    )
