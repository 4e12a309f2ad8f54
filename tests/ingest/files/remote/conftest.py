from __future__ import annotations

import pytest

from tests.support.object_stores import ObjectStore


@pytest.fixture(params=["s3", "gcs"])
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each kind of object store in turn."""
    found: ObjectStore = request.getfixturevalue(request.param)
    return found
