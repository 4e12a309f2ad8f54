from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace

from tb_perfadvisor.rules.compute.examined_results import RepeatedPageFaults
from tb_perfadvisor.testing import check_rule, find
from tests.support.examined import observed, program


def test_saves_what_new_pages_take() -> None:
    checked = check_rule(
        RepeatedPageFaults,
        slow=program(observed("page faults", 0.3, 16_384)),
        fixed=program(step_ms=7),
        saves="3ms",  # 30 % of 10 ms
    )
    (finding,) = checked.findings
    assert "Most are for results of aten::mm in train.py:12 forward" in finding.summary


def test_just_below_and_just_above_the_limit() -> None:
    assert find(RepeatedPageFaults, program(observed("page faults", 0.049))) == ()
    assert find(RepeatedPageFaults, program(observed("page faults", 0.051)))


@pytest.mark.parametrize(
    ("usual_faults", "price_ns", "share"),
    [
        (1_000, 2_000, 0.2),  # 1,000 pages of 2 µs, of 10 ms
        (500, 2_000, 0.1),  # half of them only while somebody looks
        (0, 2_000, None),  # the allocator keeps memory
        (1_000, None, None),  # another allocator, or another system
        (9_000, 20_000, 1.0),  # never more than the operator takes
    ],
)
def test_counts_pages_that_each_step_needs(
    monkeypatch: pytest.MonkeyPatch, usual_faults: int, price_ns: float | None, share: float | None
) -> None:
    torch = pytest.importorskip("torch")
    from tb_perfadvisor.instrument.examination import findings
    from tb_perfadvisor.instrument.examination.watching import Watching

    tensor, watching, ends = torch.zeros(8), Watching(), [0]
    with watching:
        for _ in range(3):
            tensor + 1
            ends.append(len(watching.calls))
    counted = (5_000, 3_000, 1_000)  # the first step may need memory once, the second by chance
    calls = [
        replace(call, ns=10_000_000, faults=faults)
        for call, faults in zip(watching.calls, counted, strict=True)
    ]
    monkeypatch.setattr(findings, "fault_ns", lambda: price_ns)
    found = findings.examined([calls[a:b] for a, b in pairwise(ends)], watching, usual_faults)
    assert found.failed == ()
    shares = [each.share for each in found.all_of("page faults")]
    assert shares == ([] if share is None else [pytest.approx(share)])
