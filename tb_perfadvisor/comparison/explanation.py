"""Says why a step did not get faster: which cause grew, and which one shrank."""

from __future__ import annotations

from collections.abc import Sequence

from tb_perfadvisor.comparison.interval import NOISE_SHARE
from tb_perfadvisor.contract import model
from tb_perfadvisor.signals.core.causes import Cause
from tb_perfadvisor.units import format_duration

_ON_HOST = frozenset({Cause.HOST_COMPUTE.value})
_SHARED_CORES = "Loader workers and input threads may take cores from the step"


def explanation(
    verdict: model.Verdict, base_ns: int, causes: Sequence[model.CauseChange]
) -> str | None:
    """One or two sentences if the step did not get faster and a cause grew; otherwise None.

    Args:
        verdict: Whether the step got faster.
        base_ns: The time of the base, per step.
        causes: The change of each cause, per step.
    """
    if verdict not in ("slower", "inconclusive"):
        return None
    least_ns = NOISE_SHARE * base_ns
    grown = max(causes, key=lambda cause: cause.change_ns, default=None)
    shrunk = min(causes, key=lambda cause: cause.change_ns, default=None)
    if grown is None or shrunk is None or grown.change_ns <= least_ns:
        return None
    more = format_duration(grown.change_ns)
    if shrunk.change_ns >= -least_ns:
        return f"{grown.label} grew by {more}." if verdict == "slower" else None
    less = format_duration(-shrunk.change_ns)
    # "Python" is a name.
    is_name = grown.cause == Cause.PYTHON.value
    label = grown.label if is_name else grown.label[:1].lower() + grown.label[1:]
    text = f"{shrunk.label} fell by {less}, but {label} grew by {more}."
    if shrunk.cause == Cause.INPUT.value and grown.cause in _ON_HOST:
        return f"{text} {_SHARED_CORES}."
    return text
