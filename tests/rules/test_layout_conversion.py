from __future__ import annotations

from tb_perfadvisor.rules.compute.forms import LayoutConversion
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.testing import check_rule, find
from tb_perfadvisor.testing.symbols import kernel, operator, xla_op
from tb_perfadvisor.trace import Device, KernelFamily

# HolisticTraceAnalysis' nccl_parser_config (A100, PyTorch 2), TraceLens' mi210 and jax08_conv,
# HolisticTraceAnalysis' trace_filter, segment-anything-fast's asdf_False (A100).
TO_NHWC = (
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true, "
    "(cudnnKernelDataType_t)2>(cudnn::ops::nchw2nhwc_params_t<float>, float const*, float*)"
)
MIOPEN = "batched_transpose_16x64_pack_1x4_ediv_1x2_half"
XLA = "input_transpose_fusion.kd"
POOLED = (
    "void permute_pooled_embs_kernel<float>(float const*, long const*, long const*, long const*, "
    "float*, long, long, long)"
)
TO_TF32 = (
    "void cudnn::ops::convertTensor_kernel<float, float, float, (cudnnKernelDataType_t)2>"
    "(float, float const*, float, float*, unsigned long)"
)
LEGEND = {
    "v": operator("aten::cudnn_convolution", shapes="[[8,64,56,56],[64,64,3,3]]"),
    "t": kernel(TO_NHWC, family=KernelFamily.LAYOUT),
    "r": kernel(MIOPEN, family=KernelFamily.LAYOUT),
    "x": kernel(XLA, family=KernelFamily.LAYOUT),
    "c": kernel(TO_TF32, family=KernelFamily.LAYOUT),
    "e": kernel(POOLED, family=KernelFamily.LAYOUT),
}
SLOW = """
    cell 1ms
    step   |..........|..........|
    main   |vSSSSSSSSS|vSSSSSSSSS|
    gpu 7  |ttHHHHHHtt|ttHHHHHHtt|
"""
FIXED = """
    cell 1ms
    step   |......|......|
    main   |vSSSSS|vSSSSS|
    gpu 7  |HHHHHH|HHHHHH|
"""
A100 = "NVIDIA A100-SXM4-40GB"


def test_saves_what_the_fix_saves() -> None:
    checked = check_rule(
        LayoutConversion, slow=SLOW, fixed=FIXED, saves="4ms", legend=LEGEND, device=A100
    )
    # From half of the conversions to all of them: the middle of 2 and 4 ms.
    assert checked.expected_ns == 3_000_000
    (finding,) = checked.findings
    assert finding.saving is not None
    assert finding.saving.low_ns == 4_000_000  # half of 4 ms in each of two steps
    table = finding.evidence[0]
    assert isinstance(table, Table)
    assert table.rows == (
        ("aten::cudnn_convolution", "", "[[8,64,56,56],[64,64,3,3]]", "", 4, 8_000_000),
    )


def test_saves_nothing_if_the_device_waits_for_the_host() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |v'''''''''|v'''''''''|
        gpu 7  |t.t.t.t.t.|t.t.t.t.t.|
    """
    (finding,) = find(LayoutConversion, trace, legend=LEGEND, device=A100) or ()
    assert finding.saving is not None
    assert (finding.saving.expected_ns, finding.saving.high_ns) == (0, 10_000_000)


def test_conversions_beside_compute_pass() -> None:
    trace = """
        cell 1ms
        step   |..........|..........|
        main   |vSSSSSSSSS|vSSSSSSSSS|
        gpu 7  |HHHHHHHHHH|HHHHHHHHHH|
        gpu 9  |tttttttt..|tttttttt..|
    """
    assert find(LayoutConversion, trace, legend=LEGEND, device=A100) == ()


def test_permuted_embeddings_do_not_count() -> None:
    trace = SLOW.replace("tt", "ee").replace("v", "o")
    assert find(LayoutConversion, trace, legend=LEGEND, device=A100) == ()


def test_dtype_conversions_do_not_count() -> None:
    assert find(LayoutConversion, SLOW.replace("tt", "cc"), legend=LEGEND, device=A100) == ()


def test_amd_devices_get_the_rocm_remedy() -> None:
    trace = SLOW.replace("tt", "rr")
    amd = Device(0, "AMD Instinct MI210", "gpu")
    (finding,) = find(LayoutConversion, trace, legend=LEGEND, device=amd) or ()
    assert "channels_last" in finding.remedies[0].snippet
    assert "MIOPEN" in finding.remedies[1].snippet
    (finding,) = find(LayoutConversion, SLOW, legend=LEGEND, device=A100) or ()
    assert len(finding.remedies) == 1


def test_volumes_have_a_layout_of_their_own() -> None:
    """`torch.channels_last` needs four dimensions, and raises an error for volumes."""
    volumes = kernel("convolveNd_dgrad_float_engine<float, 3, 512, 6, 5, 3, 3, 3, false>")
    trace = SLOW.replace("ttHHHHHHtt", "ttHHHHHVtt")
    (finding,) = find(LayoutConversion, trace, legend={**LEGEND, "V": volumes}, device=A100) or ()
    assert "torch.channels_last_3d" in finding.remedies[0].snippet


def test_xla_transposes_count_whatever_launches_them() -> None:
    trace = SLOW.replace("tt", "xx").replace("v", "o")
    (finding,) = find(LayoutConversion, trace, legend=LEGEND, device=A100, framework="jax") or ()
    assert "dimension_numbers" in finding.remedies[0].snippet


def test_xla_copies_to_another_layout_count() -> None:
    def count_with(layout: str) -> int:
        copying = xla_op("copy.1", f"%copy.1 = f32[8,4]{layout} copy(f32[8,4]{{1,0}} %p)")
        trace = SLOW.replace("tt", "yy").replace("v", "o")
        legend = {"y": copying}
        return len(find(LayoutConversion, trace, legend=legend, device=A100, framework="jax") or ())

    assert count_with("{0,1}") == 1
    assert count_with("{1,0}") == 0


def test_tpu_layouts_do_not_count() -> None:
    trace = """
        cell 1ms
        step  |..........|..........|
        main  |o.........|o.........|
        tpu 0 |xxxxXXXXXX|xxxxXXXXXX|
    """
    assert find(LayoutConversion, trace, legend=LEGEND, device="TPU v5 lite") == ()


def test_fires_only_beyond_the_limits() -> None:
    for name in ("minimum_share", "minimum_busy_share"):  # 4 of 10 busy milliseconds

        def count_with(value: float, name: str = name) -> int:
            settings = {name: value}
            return len(
                find(LayoutConversion, SLOW, settings=settings, legend=LEGEND, device=A100) or ()
            )

        assert (count_with(0.39), count_with(0.41)) == (1, 0)
