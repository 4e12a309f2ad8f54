"""What is predicted and measured: shares of the step that a change saves, and their words."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

MARGIN: Final = 0.03
"""A smaller change of the step is no difference."""
CONFIDENCE: Final = 0.95
"""Of the interval that is shown."""

Verdict = Literal["faster", "slower", "no difference", "undecided", "refused", "failed"]


class Effect(Struct, frozen=True):
    """By what share the step became shorter (positive) or longer (negative)."""

    low: float
    estimate: float
    high: float


class Prediction(Struct, frozen=True):
    """The share of the step that a finding says a change saves."""

    low: float
    expected: float
    high: float


def percent(share: float) -> str:
    """A share in percent, in whole ones from two on."""
    return f"{100 * share:.0f} %" if abs(share) >= 0.02 else f"{100 * share:.1f} %"


def span(low: float, high: float) -> str:
    """A range of shares in percent: `16–20 %`, `-0.4 to 0.8 %`."""

    def number(share: float) -> str:
        return f"{100 * share:.0f}" if max(abs(low), abs(high)) >= 0.1 else f"{100 * share:.1f}"

    first, last = number(low), number(high)
    joint = "–" if low >= 0 else " to "
    return f"{first} %" if first == last else f"{first}{joint}{last} %"


def effect_text(effect: Effect) -> str:
    """`18 % faster (16–20 %, 95 %)`, or slower."""
    is_slower = effect.estimate < 0
    word = "slower" if is_slower else "faster"
    low, high = (-effect.high, -effect.low) if is_slower else (effect.low, effect.high)
    return f"{percent(abs(effect.estimate))} {word} ({span(low, high)}, {percent(CONFIDENCE)})"
