"""Whether a file says which calls launched the device's work."""

from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.core.steps.launched_work import is_linked
from tb_perfadvisor.testing import TraceBuilder, ms, run_of


@pytest.mark.parametrize(
    ("linked_ms", "unlinked_ms", "expected"), [(5, 5, True), (4, 5, False), (5, 0, True)]
)
def test_links_count_if_they_cover_half_of_the_work(
    linked_ms: int, unlinked_ms: int, expected: bool
) -> None:
    builder = TraceBuilder()
    builder.launch(0, ms(1), key="call")
    builder.kernel("a", ms(1), ms(1 + linked_ms), launched_by="call")
    if unlinked_ms:
        builder.kernel("b", ms(10), ms(10 + unlinked_ms), launched_by="")
    trace = builder.build()
    assert is_linked(trace, Signals(run_of(trace)).device) == expected


def test_no_links_are_no_links() -> None:
    trace = TraceBuilder().kernel("b", 0, ms(1)).build()
    assert not is_linked(trace, Signals(run_of(trace)).device)
