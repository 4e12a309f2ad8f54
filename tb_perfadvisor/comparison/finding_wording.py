"""What became of the base's findings, in words. All outputs agree with the verdict on the step."""

from __future__ import annotations

from tb_perfadvisor.contract import model
from tb_perfadvisor.units import format_duration, format_duration_range

_ALMOST = 0.9
"""Share of the low end. Two recordings of the same program differ by a few percent."""
_STATUS = {
    "fixed": "Fixed",
    "new": "New",
    "changed": "Changed",
    "unchanged": "Unchanged",
    "unknown": "Unknown",
}
_DESPITE = {
    "slower": ", but the step got slower",
    "inconclusive": ", but the step did not change clearly",
}


def outcome_of(change: model.FindingChange, verdict: model.Verdict) -> str:
    """What became of a finding, in a word. What is gone is no success by itself."""
    if change.status == "fixed" and verdict != "faster":
        return "Gone"
    return _STATUS[change.status]


def summary_of(change: model.FindingChange, verdict: model.Verdict) -> str:
    """What was predicted, achieved and is left; between numbers of devices, without a judgment."""
    parts = []
    if change.predicted is not None:
        parts.append(f"predicted {_range(change.predicted)} less")
    if change.achieved_ns is not None and change.achieved_ns < 0:
        parts.append(f"its time grew by {format_duration(-change.achieved_ns)}")
    elif change.achieved_ns is not None:
        achieved = f"achieved {format_duration(change.achieved_ns)} less"
        parts.append(achieved + _judgment(change, verdict))
    elif change.status == "fixed" and change.refines is not None:
        parts.append("achieved time counted above")
    if change.remaining is not None:
        parts.append(f"{_range(change.remaining)} left to save")
    if change.reason is not None:
        parts.append(change.reason)
    return "; ".join(parts)


def _judgment(change: model.FindingChange, verdict: model.Verdict) -> str:
    predicted, achieved_ns = change.predicted, change.achieved_ns
    if verdict != "faster" or predicted is None or achieved_ns is None:
        return _DESPITE.get(verdict, "")
    if change.is_in_range:
        return ", as predicted"
    if achieved_ns > predicted.high_ns:
        return ", more than predicted"
    is_almost = achieved_ns > _ALMOST * predicted.low_ns
    return ", almost as predicted" if is_almost else ", less than predicted"


def _range(saving: model.PredictedSaving) -> str:
    return format_duration_range(saving.low_ns, saving.high_ns)
