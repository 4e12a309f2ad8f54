from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tb_perfadvisor.signals.work.fused_traffic import FusedTraffic, fused_traffic
from tb_perfadvisor.signals.work.operator_work import Extent, Operands

X = Extent(1000, 4)
HALF = Extent(500, 4)
NARROW = Extent(1000, 2)
OTHER = Extent(700, 4)


def work(*reads: Extent, to: Extent = X, stored: tuple[Extent, ...] = ()) -> Operands:
    return Operands(reads, stored, (to,), fusible=True)


def product(*reads: Extent, to: Extent = X) -> Operands:
    return Operands(reads, (), (to,), fusible=False)


def totals(traffic: FusedTraffic) -> tuple[float, float]:
    return float(traffic.fused_bytes.sum()), float(traffic.strict_bytes.sum())


def test_a_chain_reads_and_writes_once() -> None:
    traffic = fused_traffic([work(X), work(X), work(X)])
    assert traffic.kernel.tolist() == [0, 0, 0]
    assert traffic.now_bytes.tolist() == [8000, 8000, 8000]
    assert totals(traffic) == (8000, 8000)


def test_casts_inside_a_chain_cost_nothing() -> None:
    # 2 bytes in, 4 inside, 2 out.
    traffic = fused_traffic([work(NARROW), work(X), work(X, to=NARROW)])
    assert totals(traffic) == (4000, 4000)


def test_a_product_reads_what_was_written_before() -> None:
    traffic = fused_traffic([work(X), product(X), work(X)])
    assert traffic.kernel.tolist() == [0, -1, 1]
    assert totals(traffic) == (16_000, 16_000)


def test_a_gate_is_fused_across_a_product_that_does_not_read_it() -> None:
    # silu(x @ gate) * (x @ up): two reads and one write.
    traffic = fused_traffic([product(OTHER, HALF), work(X), product(OTHER, HALF), work(X, X)])
    assert traffic.kernel.tolist() == [-1, 0, -1, 0]
    assert totals(traffic) == (12_000, 12_000)


def test_a_residual_is_written_and_read_again() -> None:
    # x + y is normalized for a product, whose result is added to it.
    norm = [work(X, X), work(X), product(X), work(X, X)]
    traffic = fused_traffic([product(OTHER), *norm])
    # Kernel 0: x, y; the sum and the norm. Kernel 1: the sum and the product; their sum.
    assert traffic.fused_bytes.tolist() == [16_000, 12_000]


def test_what_the_backward_pass_reads_is_written() -> None:
    forward = [work(X), work(X), product(X)]
    backward = [product(X), work(X, stored=(X,))]
    lone = fused_traffic(forward)
    both = fused_traffic([*forward, *backward])
    # The forward pass writes one tensor more; the backward pass reads it and a gradient.
    assert both.fused_bytes.sum() == lone.fused_bytes.sum() + 4000 + 12_000


def test_a_slice_belongs_to_what_the_kernel_has() -> None:
    # Rotary: x * cos, -x[half], cat, * sin, add. Lists have no type.
    parts = Extent(500, 0)
    cat = Operands((parts, parts), (), (Extent(1000, 0),), fusible=True, copies=True)
    traffic = fused_traffic([work(X), work(HALF, to=HALF), cat, work(X), work(X, X)])
    assert set(traffic.kernel.tolist()) == {0}
    # One read and one write; strictly, both halves of x are read again.
    assert totals(traffic) == (8000, 12_000)


def test_a_sum_over_all_rows_ends_a_kernel() -> None:
    statistics = Operands((X,), (), (X,), fusible=True, complete=True, passes=2)
    traffic = fused_traffic([work(X), statistics, work(X)])
    assert traffic.kernel.tolist() == [0, 0, 1]
    assert traffic.launches.tolist() == [2, 1]
    # x; the first result again, for the second pass; the normalized result. Then that one, and
    # the last.
    assert traffic.fused_bytes.tolist() == [12_000, 8000]


def test_what_follows_a_normalization_joins_its_last_pass() -> None:
    # Batch norm, then an activation and a residual connection: x for the statistics and again to
    # normalize it, the residual, the result.
    norm = Operands((X,), (), (X,), fusible=True, passes=2)
    traffic = fused_traffic([norm, work(X), work(X, OTHER)])
    assert traffic.kernel.tolist() == [0, 0, 0]
    assert traffic.launches.tolist() == [2]
    assert traffic.fused_bytes.tolist() == [4000 + 4000 + OTHER.size_bytes + 4000]


def test_unknown_operators_read_everything() -> None:
    assert fused_traffic([work(X), None, work(X)]).kernel.tolist() == [0, -1, 1]


@pytest.mark.parametrize(("size", "kernels"), [(1100, 1), (2000, 2)])
def test_estimated_sizes_are_equal_up_to_a_quarter(size: int, kernels: int) -> None:
    like = Extent(size, 1)
    traffic = fused_traffic(
        [work(Extent(1000, 1), to=Extent(1000, 1)), work(like, to=like)], estimated=True
    )
    assert len(traffic.fused_bytes) == kernels


EXTENTS = st.sampled_from([X, HALF, NARROW, OTHER])
OPERATORS = st.builds(
    lambda reads, to, stored, fusible, complete: Operands(
        tuple(reads), tuple(stored), (to,), fusible, complete
    ),
    st.lists(EXTENTS, min_size=1, max_size=3),
    EXTENTS,
    st.lists(EXTENTS, max_size=1),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(st.none() | OPERATORS, max_size=40))
def test_fusion_never_moves_more_and_never_nothing(
    sequence: list[Operands | None],
) -> None:
    traffic = fused_traffic(sequence)
    assert (traffic.fused_bytes <= traffic.strict_bytes).all()
    assert traffic.strict_bytes.sum() <= traffic.now_bytes.sum()
    assert (traffic.fused_bytes > 0).all()
    fused = [op is not None and op.fusible for op in sequence]
    assert (traffic.kernel >= 0).tolist() == fused
    assert set(traffic.kernel[traffic.kernel >= 0].tolist()) == set(range(len(traffic.launches)))
