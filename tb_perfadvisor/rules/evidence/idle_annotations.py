"""Idle time by the user's annotations, which tells where in the program it is."""

from __future__ import annotations

from tb_perfadvisor.rules.amounts import share_of_window
from tb_perfadvisor.rules.finding import Column, Finding, Table
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.host.idle_annotations import annotated_idle
from tb_perfadvisor.trace.intervals import Intervals, intersect, total_ns, union

_IDLE_PART = 0.5
"""A finding is about idle time if it claims more of it than of anything else."""


def annotation_table(signals: Signals, idle: Intervals) -> tuple[Table, ...]:
    """The annotations around some idle time; no table if there are none.

    Args:
        signals: The worker's facts.
        idle: Intervals in which the device idles; other time is ignored.
    """
    found = annotated_idle(signals).by_name(idle)
    if not any(name >= 0 for name, _ in found):
        return ()
    return (
        Table(
            "Idle time by annotation",
            (
                Column("name", "Annotation"),
                Column("idle_ns", "Idle", "ns"),
                Column("share", "Share of the steps", "share"),
            ),
            tuple(
                (
                    signals.trace.text(name) or "(no annotation)",
                    idle_ns,
                    share_of_window(idle_ns, signals),
                )
                for name, idle_ns in found
            ),
        ),
    )


def claimed_idle(finding: Finding, signals: Signals) -> Intervals | None:
    """The idle time that a finding claims; None if it is about something else."""
    if finding.saving is None:
        return None
    gaps = signals.attribution.idle
    idle = intersect(finding.saving.claims, union(gaps.start_ns, gaps.end_ns))
    return idle if total_ns(idle) > _IDLE_PART * finding.saving.claimed_ns else None
