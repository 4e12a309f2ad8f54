from __future__ import annotations

import pytest

from tb_perfadvisor.rules.compute.amount_of_work import PaddedGraphBatch
from tb_perfadvisor.testing import check_rule, find, us
from tb_perfadvisor.trace import Trace
from tests.support.server_trace import Served, server_trace


def batch(requests: int, size: int) -> Served:
    """A batch in a graph of some size, which takes 4 ms and 50 µs for each of its requests."""
    return Served(decodes=requests, grid=8 * size, device_us=4_000 + 50 * size)


def steps(*sizes: tuple[int, int]) -> Trace:
    return server_trace([batch(*pair) for pair in sizes])


# The last step does not count.
SLOW = steps((16, 16), (17, 32), (32, 32), (18, 32), (20, 32), (16, 16), (16, 16))
FIXED = steps((16, 16), (17, 17), (32, 32), (18, 18), (20, 20), (16, 16), (16, 16))


def test_saves_what_the_fix_saves() -> None:
    # 15, 14 and 12 requests too many, of 50 µs each, in six steps.
    checked = check_rule(
        PaddedGraphBatch, slow=SLOW, fixed=FIXED, saves=us(41 * 50) // 6, tolerance=0.01
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.high_ns == pytest.approx(us(41 * 50), rel=1e-6)
    assert finding.saving.expected_ns == pytest.approx(us(41 * 25), rel=1e-6)
    assert "3 of 6 decode steps run in GPU graphs of larger batches: 42.7 % of the requests" in (
        finding.summary
    )


def test_graphs_of_one_size_do_not_tell_what_padding_costs() -> None:
    assert find(PaddedGraphBatch, steps((17, 32), (32, 32), *[(18, 32)] * 4)) == ()


def test_graphs_without_numbers_of_blocks_cannot_be_told_apart() -> None:
    unknown = [Served(decodes=n, device_us=4_000 + 50 * n) for n in (16, 17, 32, 18, 20, 16, 16)]
    assert find(PaddedGraphBatch, server_trace(unknown)) == ()


def test_padding_that_takes_no_time_is_no_finding() -> None:
    served = [Served(decodes=n, grid=g) for n, g in ((16, 1), (17, 2), (32, 2), (18, 2), (16, 1))]
    assert find(PaddedGraphBatch, server_trace(served)) == ()


def test_just_below_and_just_above_the_limits() -> None:
    # 12 of 32 requests are 37.5 % padding.
    trace = steps((16, 16), (20, 32), (32, 32), (20, 32), (20, 32), (16, 16), (16, 16))
    for value, count in ((0.38, 0), (0.37, 1)):
        found = find(PaddedGraphBatch, trace, settings={"minimum_padding": value})
        assert len(found or ()) == count
