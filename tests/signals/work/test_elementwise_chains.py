from __future__ import annotations

import pytest

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.work.elementwise_chains import elementwise_chains
from tb_perfadvisor.testing import TraceBuilder, run_of
from tb_perfadvisor.testing.builder import ms, us
from tb_perfadvisor.trace import KernelFamily

# A prefix of kernel names in TraceLens' recordings of Qwen1.5 (H100).
KERNEL = "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<c10::BFloat16"
SHAPE = [4096, 4096]


def remaining_shares(*dtypes: str) -> list[float]:
    """Of a chain of operators on one tensor each, with these data types."""
    builder = TraceBuilder().device("NVIDIA H100 80GB HBM3").step(0, 0, ms(10))
    for place, dtype in enumerate(dtypes):
        at = us(20 * place)
        builder.operator("aten::mul", at, at + us(20), shapes=[SHAPE], dtypes=[dtype], key=str(at))
        builder.kernel(
            KERNEL, ms(place), ms(place + 1), launched_by=str(at), family=KernelFamily.ELEMENTWISE
        )
    chains = elementwise_chains(Signals(run_of(builder.build())))
    assert chains.chain.tolist() == [0] * len(dtypes)
    return chains.remaining_share.tolist()


@pytest.mark.parametrize(
    ("dtypes", "share"),
    [
        # Each moves its tensor twice. Fused: one read and one write of the two each.
        (("float", "float"), 8 / 16),
        # What one wrote and the other read in 2 bytes is saved: 2 × 2 of 2 × 2 + 2 × 4.
        (("c10::BFloat16", "float"), 8 / 12),
        (("float", "c10::BFloat16"), 8 / 12),
    ],
)
def test_tensors_of_two_widths_are_handed_over_in_the_narrower_one(
    dtypes: tuple[str, str], share: float
) -> None:
    assert remaining_shares(*dtypes) == pytest.approx([share, share])
