"""The time stamp of synthetic profiles."""

ORIGIN_UNIX_NS = 1_767_225_600_000_000_000  # 2026-01-01
