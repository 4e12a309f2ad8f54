from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes says nothing of whether it holds: machines are busy.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


@pytest.fixture(scope="session")
def corpus() -> Path:
    """A folder of real profiles with independent expected numbers."""
    folder = os.environ.get("PERFADVISOR_CORPUS")
    if not folder:
        pytest.skip("PERFADVISOR_CORPUS names no folder of real profiles")
    return Path(folder)
