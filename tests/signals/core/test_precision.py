from __future__ import annotations

import pytest
from msgspec.structs import replace

from tb_perfadvisor.signals import Need, Signals, why_missing
from tb_perfadvisor.signals.core.precision import width_of_types
from tb_perfadvisor.testing import TraceBuilder, ms, run_of
from tb_perfadvisor.testing.symbols import collective
from tb_perfadvisor.trace import CopyDirection, Precision


@pytest.mark.parametrize(
    ("types", "width"),
    [
        ("float;float", Precision.BITS_32),
        ("float;c10::BFloat16", Precision.BITS_16),
        ("c10::Half;c10::Float8_e4m3fn", Precision.BITS_8),
        ("double", Precision.BITS_64),
        ("c10::complex<float>", Precision.BITS_32),
        ("long int;bool;Scalar;", Precision.UNKNOWN),
        ("", Precision.UNKNOWN),
    ],
)
def test_precision_is_the_lowest_width_of_the_inputs(types: str, width: Precision) -> None:
    assert width_of_types(types) == width


def test_precision_comes_from_the_name_before_the_operator_types() -> None:
    builder = TraceBuilder().step(0, 0, ms(20))
    for index, (dtypes, precision) in enumerate(
        [
            (["c10::Half"], Precision.BITS_32),  # the kernel's own name wins
            (["c10::BFloat16", "float"], Precision.UNKNOWN),
            (["long int"], Precision.UNKNOWN),
            (None, Precision.UNKNOWN),
        ]
    ):
        at = ms(4 * index)
        builder.operator("aten::mm", at, at + ms(1), dtypes=dtypes, key=str(index))
        builder.kernel(
            f"kernel {index}", at + ms(1), at + ms(2), precision=precision, launched_by=str(index)
        )
    builder.kernel("alone", ms(17), ms(18), launched_by="")
    builder.copy(CopyDirection.HOST_TO_DEVICE, ms(18), ms(19), launched_by="1")
    assert Signals(run_of(builder.build())).precision.tolist() == [
        Precision.BITS_32,
        Precision.BITS_16,
        Precision.UNKNOWN,
        Precision.UNKNOWN,
        Precision.UNKNOWN,
        Precision.UNKNOWN,
    ]


def test_precision_comes_from_the_innermost_operator_around_the_launch() -> None:
    builder = TraceBuilder().step(0, 0, ms(10))
    builder.operator("aten::linear", ms(0), ms(4), dtypes=["float"], launches=False)
    builder.operator("aten::addmm", ms(1), ms(3), dtypes=["c10::Half"], key="inner")
    builder.kernel("gemm", ms(4), ms(6), launched_by="inner")
    assert Signals(run_of(builder.build())).precision.tolist() == [Precision.BITS_16]


def test_width_of_a_collective_is_not_a_compute_precision() -> None:
    wire = replace(
        collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        kernel={"precision": Precision.BITS_32},
    )
    builder = TraceBuilder().step(0, 0, ms(10)).add(wire, ms(1), ms(5), stream=20)
    assert why_missing(Signals(run_of(builder.build())), Need.KERNEL_PRECISION) is not None
    builder.kernel("gemm", ms(5), ms(9), precision=Precision.BITS_16)
    assert why_missing(Signals(run_of(builder.build())), Need.KERNEL_PRECISION) is None
