"""What tests do at night: `make night` tries more than `make test` has time for."""

from __future__ import annotations

import os

from hypothesis import settings

IS_NIGHT = bool(os.environ.get("PERFADVISOR_NIGHT"))
_TIMES_AT_NIGHT = 12


def examples(number: int) -> settings:
    """How many examples Hypothesis draws for a test: twelve times as many at night."""
    return settings(max_examples=number * _TIMES_AT_NIGHT if IS_NIGHT else number)
