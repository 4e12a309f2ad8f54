"""The report's headline: what matters most, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.engine.ranking import CombinedSaving, RankedFinding
from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.attribution import COMPUTE, LABELS, Cause
from tb_perfadvisor.units import format_duration, format_share

NOTABLE_SHARE = 0.2
"""Name a cause that takes a fifth of the step even when no rule has advice on it."""
_NUMBERS = ("No", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def headline(
    signals: Signals, findings: Sequence[RankedFinding], combined: CombinedSaving | None
) -> str:
    """Say what all the advice together would save, or else where the time goes.

    Args:
        signals: Of the reference worker.
        findings: The ranked findings.
        combined: What they save together; None when none has a saving.
    """
    steps, attribution = signals.steps, signals.attribution
    if attribution.window_ns == 0:
        return "The profile contains no work to analyze"
    whole = (
        f"each {format_duration(attribution.window_ns / steps.count)} step"
        if len(steps)
        else f"the {format_duration(attribution.window_ns)} profiled"
    )
    if combined is not None and combined.expected_ns > 0:
        count = sum(
            ranked.finding.saving is not None and ranked.refines is None for ranked in findings
        )
        number = _NUMBERS[count] if count < len(_NUMBERS) else str(count)
        saved = format_duration(combined.expected_ns / steps.count)
        return f"{number} change{'' if count == 1 else 's'} could save {saved} of {whole}"
    if signals.device.is_missing:
        return "This profile contains no device events, so the device's time is unknown"
    worst = max(
        (cause for cause in Cause if cause not in (*COMPUTE, Cause.HOST_COMPUTE)),
        key=attribution.total_ns,
    )
    if (attribution.share(worst) or 0.0) >= NOTABLE_SHARE:
        share = format_share(attribution.share(worst))
        return f"{LABELS[worst]}: {share} of {whole}, for which no rule has advice yet"
    if signals.device.index is None:
        return f"Nothing stands out in {whole}, on the CPU"
    busy = format_share(attribution.share(*COMPUTE))
    return f"Nothing stands out: the device computes for {busy} of {whole}"
