from __future__ import annotations

import math

import pytest

from tb_perfadvisor.units import (
    NS_PER_S,
    format_bytes,
    format_duration,
    format_elapsed,
    format_exit_status,
    format_rate,
    format_share,
)


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (None, "unknown"),
        (math.nan, "unknown"),
        (math.inf, "unknown"),
        (0, "0 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (9_994, "9.99 µs"),
        (9_996, "10.0 µs"),
        (123_456, "123 µs"),
        (999_499, "999 µs"),
        (999_500, "1.00 ms"),
        (1_500_000, "1.50 ms"),
        (26_140_000, "26.1 ms"),
        (3_600_000_000_000, "3600 s"),
        (-1_500_000, "-1.50 ms"),
    ],
)
def test_durations_have_three_digits(duration_ns: float | None, text: str) -> None:
    assert format_duration(duration_ns) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (None, "unknown"),
        (math.nan, "unknown"),
        (0, "0.0 %"),
        (0.0009, "< 0.1 %"),
        (-0.0009, "> -0.1 %"),
        (0.001, "0.1 %"),
        (0.1234, "12.3 %"),
        (1, "100.0 %"),
    ],
)
def test_shares_are_percentages(share: float | None, text: str) -> None:
    assert format_share(share) == text


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1_610_612_736, "1.50 GiB"),  # 1.5 x 2^30
        (2**60, "1024 PiB"),
    ],
)
def test_bytes_are_in_binary_units(size_bytes: float | None, text: str) -> None:
    assert format_bytes(size_bytes) == text


@pytest.mark.parametrize(
    ("rate", "unit", "text"),
    [
        (None, "B/s", "unknown"),
        (0, "B/s", "0.00 B/s"),
        (450e9, "B/s", "450 GB/s"),
        (999_600, "B/s", "1.00 MB/s"),
        (989.4e12, "FLOP/s", "989 TFLOP/s"),
        (12.3e18, "FLOP/s", "12300 PFLOP/s"),
    ],
)
def test_rates_are_in_decimal_units(rate: float | None, unit: str, text: str) -> None:
    assert format_rate(rate, unit) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(95, "95.0 s"), (120, "2.00 minutes"), (7_199, "120 minutes"), (7_200, "2.00 hours"),
     (200_000, "2.31 days")],
)  # fmt: skip
def test_elapsed_time(seconds: int, text: str) -> None:
    assert format_elapsed(seconds * NS_PER_S) == text


def test_a_process_that_a_signal_ended_names_it() -> None:
    ended = [format_exit_status(status) for status in (0, 3, -11, -1_000)]
    assert ended == ["status 0", "status 3", "signal 11 (SIGSEGV)", "signal 1000"]
