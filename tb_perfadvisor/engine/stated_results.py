"""Compares the analysis with what TensorFlow's own tools state about the same recording."""

from __future__ import annotations

from collections.abc import Iterator

from tb_perfadvisor.note import Note
from tb_perfadvisor.signals import Cause, Signals
from tb_perfadvisor.signals.recording.availability import shows_input
from tb_perfadvisor.trace import Precision, StatedResults
from tb_perfadvisor.units import format_duration, format_share

_STEP_DIFFERENCE = 0.05
_SHARE_DIFFERENCE = 0.03
"""Definitions of what belongs to a step differ by a few points."""
_LOST = frozenset({"event-limit", "truncated-file"})
"""Notes on files that lack events of the recording."""


def on_stated_results(signals: Signals) -> list[Note]:
    """Whether results of TensorFlow's tools agree with the events, and which to trust if not."""
    stated = _of_host(signals)
    if stated is None:
        return []
    differences = list(_differences(signals, stated))
    if not differences:
        return [
            Note(
                "other-results",
                "info",
                f"TensorFlow's own results ({stated.file}) agree with the events: "
                f"{format_duration(stated.step_ns)} per step{_stated_input(stated)}.",
            )
        ]
    return [
        Note(
            "other-results",
            "warning",
            f"TensorFlow's own results ({stated.file}) disagree with the events: "
            f"{'; '.join(differences)}. {_trusted(signals, stated)}",
        )
    ]


def _of_host(signals: Signals) -> StatedResults | None:
    """The results of this trace's host, or the only ones."""
    results = signals.run.stated
    host = signals.trace.source.host
    named = next((result for result in results if result.host == host), None)
    is_alone = len(results) == 1 and len(signals.run.traces) == 1
    return results[0] if named is None and is_alone else named


def _stated_input(stated: StatedResults) -> str:
    if stated.input_share is None:
        return ""
    return f", {format_share(stated.input_share)} of it waiting for input"


def _differences(signals: Signals, stated: StatedResults) -> Iterator[str]:
    """Where the two differ by more than a few points."""
    steps = len(signals.steps)
    if not steps:
        yield (
            f"they have {_count(stated.steps)} of {format_duration(stated.step_ns)}, "
            "the events show none"
        )
        return
    step_ns = signals.attribution.window_ns / steps
    if abs(step_ns - stated.step_ns) > _STEP_DIFFERENCE * max(step_ns, stated.step_ns):
        yield (
            f"a step takes {format_duration(stated.step_ns)} (mean of {stated.steps}), by the "
            f"events {format_duration(step_ns)} (mean of {steps})"
        )
    input_share = signals.attribution.share(Cause.INPUT) if shows_input(signals) else None
    precisions = signals.compute_shares
    for what, theirs, ours in (
        ("waiting for input", stated.input_share, input_share),
        (
            "compute in 16 bits",
            stated.share_of_16_bits,
            None if precisions is None else precisions[Precision.BITS_16],
        ),
    ):
        if theirs is None or ours is None or abs(theirs - ours) <= _SHARE_DIFFERENCE:
            continue
        yield f"{what} is {format_share(theirs)}, by the events {format_share(ours)}"


def _trusted(signals: Signals, stated: StatedResults) -> str:
    """Which of the two to trust, and why."""
    if any(note.id in _LOST for note in signals.trace.notes):
        return (
            "The file lacks events that the results still count: trust the results for the "
            "recording as a whole, and the events for the steps that they cover."
        )
    if len(signals.steps) and len(signals.steps) != stated.steps:
        return (
            "The two cover different steps. The events are used, because they show which steps "
            "are complete."
        )
    return (
        "The events are used, because they show what ran when; the results are sums of them, by "
        "rules of their own."
    )


def _count(steps: int) -> str:
    return "one step" if steps == 1 else f"{steps:,} steps"
