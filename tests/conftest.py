from __future__ import annotations

import os
from collections.abc import Iterator
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


@pytest.fixture(scope="session", autouse=True)
def _cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep results out of the user's own cache, and the user's out of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PERFADVISOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield
