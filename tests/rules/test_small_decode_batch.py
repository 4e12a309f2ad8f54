from __future__ import annotations

from collections.abc import Iterable

import pytest

from tb_perfadvisor.rules.compute.amount_of_work import SmallDecodeBatch
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.trace import Trace
from tests.support.changed_rule import changed
from tests.support.server_trace import Served, server_trace


def steps(batches: Iterable[int], fixed_us: int, each_us: int) -> Trace:
    """Decode steps; each takes 205 µs on the host besides the device's time."""
    return server_trace([Served(decodes=n, device_us=fixed_us + each_us * n) for n in batches])


BATCHES = (8, 12, 16, 8, 12, 16, 8, 12, 16, 12)


def test_more_requests_take_about_as_long() -> None:
    checked = check_rule(
        SmallDecodeBatch,
        slow=steps(BATCHES, 5_000, 40),
        fixed=steps(BATCHES, 500, 400),
        scales=False,
    )
    (finding,) = checked.findings
    assert (finding.saving, finding.severity) == (None, "low")
    batch = finding.larger_batch
    assert batch is not None
    assert (batch.rows, batch.more_rows) == (12, 24)
    # 5,205 of 5,205 + 12 x 40 = 5,685 µs; twice the requests share it. The line has no error.
    assert batch.expected_share == pytest.approx(5205 / 5685 / 2, abs=1e-4)
    assert batch.low_share == pytest.approx(batch.expected_share, abs=1e-4)
    assert finding.summary.startswith(
        "91.6 % of a decode step's time does not depend on its requests, of which there are 8 to 16"
    )


def test_batches_of_one_size_tell_nothing() -> None:
    assert find(SmallDecodeBatch, steps([8] * 12, 5_000, 40)) == ()


def test_large_batches_have_no_room() -> None:
    # An H100 computes 989.4 TFLOP/s and reads 3.35 TB/s, 295 FLOP per byte: twice 80 rows are more
    # than half of that.
    assert find(SmallDecodeBatch, steps((60, 80, 100) * 4, 5_000, 4)) == ()


def test_just_below_and_just_above_the_limits() -> None:
    trace = steps(BATCHES, 5_000, 40)
    # Nine steps count. 24 of 295 rows are 8.1 %.
    for settings, count in (
        ({"minimum_steps": 10}, 0),
        ({"minimum_steps": 9}, 1),
        ({"minimum_fixed_share": 0.92}, 0),
        ({"minimum_fixed_share": 0.91}, 1),
        ({"maximum_compute_share": 0.08}, 0),
        ({"maximum_compute_share": 0.083}, 1),
    ):
        assert len(find(changed(SmallDecodeBatch, settings), trace) or ()) == count
