"""Units, and quantities as text. Everything else works with plain numbers."""

from __future__ import annotations

import signal
from math import isfinite

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
LARGEST_SETTING = 10**15
"""The most that a number in an option or a settings file may be. Larger ones are slips, and
products with them are no longer finite."""

_PREFIXES = ("", "k", "M", "G", "T", "P")
_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_duration(duration_ns: float | None) -> str:
    """Format nanoseconds with three significant digits: `1.23 ms`; None gives `unknown`."""
    if duration_ns is None or not isfinite(duration_ns):
        return "unknown"
    magnitude = abs(duration_ns)
    for size_ns, unit in ((NS_PER_S, "s"), (NS_PER_MS, "ms"), (NS_PER_US, "µs")):
        # 999.5 of a unit would be printed as 1000, so the next unit starts there.
        if magnitude >= size_ns * 0.9995:
            return f"{_three_digits(duration_ns / size_ns)} {unit}"
    return f"{duration_ns:.0f} ns"


def format_duration_range(low_ns: float, high_ns: float) -> str:
    """Format a range of durations: `10.0–30.0 ms`, `950 µs–1.20 ms`, `-2.00 to 3.00 ms`."""
    low, high = format_duration(low_ns) if low_ns else "0", format_duration(high_ns)
    if low == high:
        return high
    value, _, unit = low.rpartition(" ")
    joint = "–" if low_ns >= 0 else " to "
    shared = value and unit == high.rpartition(" ")[2]
    return f"{value}{joint}{high}" if shared else f"{low}{joint}{high}"


def format_elapsed(elapsed_ns: float) -> str:
    """Format the length of a run: like `format_duration`, but with minutes, hours and days."""
    for size_s, unit in ((86_400, "days"), (3_600, "hours"), (60, "minutes")):
        if elapsed_ns >= 2 * size_s * NS_PER_S:
            return f"{_three_digits(elapsed_ns / (size_s * NS_PER_S))} {unit}"
    return format_duration(elapsed_ns)


def format_share(share: float | None) -> str:
    """Format a share (0-1) as percent: `12.3 %`; None gives `unknown`."""
    if share is None or not isfinite(share):
        return "unknown"
    percent = share * 100
    if percent and abs(percent) < 0.1:
        return "< 0.1 %" if percent > 0 else "> -0.1 %"
    return f"{percent:.1f} %"


def format_bytes(size_bytes: float | None) -> str:
    """Format bytes in binary units: `1.50 GiB`; None gives `unknown`."""
    if size_bytes is None or not isfinite(size_bytes):
        return "unknown"
    value, unit = float(size_bytes), 0
    while abs(value) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} B" if unit == 0 else f"{_three_digits(value)} {_BYTE_UNITS[unit]}"


def format_rate(per_s: float | None, unit: str) -> str:
    """Format a rate in decimal units, as data sheets do: `450 GB/s`; None gives `unknown`.

    The unit is `B/s` or `FLOP/s`.
    """
    if per_s is None or not isfinite(per_s):
        return "unknown"
    value, prefix = float(per_s), 0
    while abs(value) >= 999.5 and prefix < len(_PREFIXES) - 1:
        value, prefix = value / 1000, prefix + 1
    return f"{_three_digits(value)} {_PREFIXES[prefix]}{unit}"


def format_exit_status(status: int) -> str:
    """Format how a process ended: `status 3`, or `signal 11 (SIGSEGV)` for -11."""
    if status >= 0:
        return f"status {status}"
    try:
        return f"signal {-status} ({signal.Signals(-status).name})"
    except ValueError:
        return f"signal {-status}"


def _three_digits(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    return f"{value:.1f}" if magnitude >= 9.995 else f"{value:.2f}"
