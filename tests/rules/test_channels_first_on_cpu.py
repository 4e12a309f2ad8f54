from __future__ import annotations

from msgspec.structs import replace

from tb_perfadvisor.machine.facts import Facts, Made, Program
from tb_perfadvisor.rules.compute.forms import ChannelsFirstOnCpu
from tb_perfadvisor.testing import TraceBuilder, check_rule, find
from tb_perfadvisor.testing.builder import us
from tb_perfadvisor.trace import Trace


def program(
    convolution_us: int, norm_us: int, pool_us: int, *, channels_last: bool | None = False
) -> Trace:
    """Three steps on the CPU: a convolution, a batch norm and a pooling."""
    builder, at = TraceBuilder(), 0
    for number in range(3):
        builder.step(number, us(at), us(at + convolution_us + norm_us + pool_us))
        for name, length in (
            ("aten::mkldnn_convolution", convolution_us),
            ("aten::native_batch_norm", norm_us),
            ("aten::max_pool2d_with_indices", pool_us),
        ):
            if length:
                builder.operator(name, us(at), us(at + length), launches=False)
            at += length
    known = {} if channels_last is None else {"channels_last": channels_last}
    made = Made("model", "Net", "train.py", 3, "", {"convolutions": 2, **known})
    return replace(builder.build(), facts=Facts(program=Program(made=(made,))))


def test_saves_what_channels_last_saves() -> None:
    # 5 % of 4 ms, 35 % of 2 ms and 73 % of 2 ms: 0.2 + 0.7 + 1.46 ms.
    checked = check_rule(
        ChannelsFirstOnCpu,
        slow=program(4000, 2000, 2000),
        fixed=program(3800, 1300, 540, channels_last=True),
        saves="2360us",
    )
    (finding,) = checked.findings
    assert finding.saving is not None
    # The low end counts what may get slower: convolutions by 7 %, batch norms by 5 %.
    assert finding.saving.low_ns == 3 * us(0.6 * 2000 - 0.05 * 2000 - 0.07 * 4000)


def test_nothing_where_the_layout_is_used_or_no_image_is_convolved() -> None:
    assert find(ChannelsFirstOnCpu, program(4000, 2000, 2000, channels_last=True)) == ()
    (finding,) = find(ChannelsFirstOnCpu, program(4000, 2000, 2000, channels_last=None)) or ()
    assert finding.saving is not None  # unknown: half of it is expected, and it may be nothing
    assert (finding.saving.low_ns, finding.saving.expected_ns) == (0, 3 * us(1180))
    assert find(ChannelsFirstOnCpu, program(0, 2000, 2000)) == ()


def test_just_below_and_just_above_the_limit() -> None:
    # 2.36 of 8 ms: 29.5 %.
    trace = program(4000, 2000, 2000)
    assert find(ChannelsFirstOnCpu, trace, settings={"minimum_share": 0.3}) == ()
    assert find(ChannelsFirstOnCpu, trace, settings={"minimum_share": 0.29})
