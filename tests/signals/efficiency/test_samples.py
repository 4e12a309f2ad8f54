from __future__ import annotations

from tb_perfadvisor.signals import Signals
from tb_perfadvisor.signals.efficiency.utilization import samples_per_step
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.trace import EventKind

SHAPES = [[32, 3, 224, 224], [64, 3, 7, 7], [64]]


def samples(*, losses: int = 0, fetches: int = 0, steps: int = 2) -> int | None:
    """Steps of 10 ms with a convolution each, and some losses and fetches in all of them."""
    builder = TraceBuilder()
    for number in range(steps):
        begin = ms(10 * number)
        builder.step(number, begin, begin + ms(10))
        builder.operator("aten::conv2d", begin + ms(1), begin + ms(2), shapes=SHAPES)
        for at in range(losses):
            start = begin + ms(3 + at)
            builder.operator("aten::cross_entropy_loss", start, start + ms(0.5))
        for at in range(fetches):
            start = begin + ms(6 + at)
            builder.host(EventKind.INPUT_WAIT, "fetch", start, start + ms(0.5))
    return samples_per_step(Signals(run_of(builder.build())))


def test_one_loss_or_one_fetch_means_one_forward_pass() -> None:
    assert samples(losses=1) == 32
    assert samples(fetches=1) == 32


def test_several_or_none_leave_the_number_of_forward_passes_open() -> None:
    assert samples(losses=2) is None
    assert samples(losses=2, fetches=2) is None
    assert samples() is None
