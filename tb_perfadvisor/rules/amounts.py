"""How large an amount of time or a count is, as a share and in words."""

from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.units import format_duration, format_share


def share_of_window(total_ns: int, signals: Signals) -> float:
    """A total's share of the used steps; 0 when there is no time at all."""
    window_ns = signals.attribution.window_ns
    return total_ns / window_ns if window_ns else 0.0


def per_step(total_ns: int, signals: Signals) -> str:
    """A total in words: `12.0 ms of each step (8.1 %)`; without steps, of the profile."""
    share = format_share(share_of_window(total_ns, signals))
    return f"{time_of_each(total_ns, signals)} ({share})"


def time_of_each(total_ns: int, signals: Signals) -> str:
    """A total in words, where its share is known already: `12.0 ms of each step`."""
    if len(signals.steps) == 0:
        return f"{format_duration(total_ns)} of the profile"
    return f"{format_duration(total_ns / len(signals.steps))} of each step"


def share_of_each(total_ns: int, signals: Signals) -> str:
    """A total's share in words: `8.1 % of each step`; without steps, `8.1 % of the profile`."""
    whole = "each step" if len(signals.steps) else "the profile"
    return f"{format_share(share_of_window(total_ns, signals))} of {whole}"


def in_analyzed(signals: Signals) -> str:
    """What totals are about: `in the analyzed steps`; without steps, `in the profile`."""
    return "in the analyzed steps" if len(signals.steps) else "in the profile"


def count_per_step(count: int, noun: str, signals: Signals, *, plural: str = "") -> str:
    """A count in words: `12 waits per step`; without steps, `3 waits in all`.

    A trace that holds only a recorder's sums has no counts: `waits summed up by step`.
    """
    plural = plural or f"{noun}s"
    if signals.trace.totals is not None:
        return f"{plural} summed up by step"
    if len(signals.steps) == 0:
        return f"{count:,} {noun if count == 1 else plural} in all"
    mean = count / len(signals.steps)
    text = f"{mean:,.0f}" if mean >= 10 or mean == round(mean) else f"{mean:.1f}"
    return f"{text} {noun if text == '1' else plural} per step"
