"""Devices that a profile does not name, described as in recorded profiles."""

from __future__ import annotations

import pytest

from tb_perfadvisor.errors import UsageError
from tb_perfadvisor.hardware import identify, known_devices, named_device
from tb_perfadvisor.hardware.identify import built_for
from tb_perfadvisor.trace import Device

# What profiles record of these devices (tracelens-jax, tracelens/inference_vllm…, xprof-demo).
MI300X = Device(0, "", "gpu", 206141652992, 304, vendor="amd", compute_capability="9.4")
MI355X = Device(
    *(0, "", "gpu", 309220868096, 256),
    vendor="amd",
    compute_capability="9.5",
    clock_hz=2.4e9,
)
V100 = Device(
    *(0, "", "gpu", 16945512448, 80),
    vendor="nvidia",
    compute_capability="7.0",
    clock_hz=1.53e9,
    reported_bandwidth_bytes_per_s=898.048e9,
)


def test_blank_name_of_an_mi300() -> None:
    found = identify(MI300X)
    assert found.spec is not None
    assert (found.name, found.spec.name) == ("AMD Instinct MI300X", "MI300X")
    assert found.evidence == (
        "compute capability 9.4, 304 multiprocessors, 192 GiB of memory"  # 206141652992 / 2^30
    )
    assert found.candidates == ()


@pytest.mark.parametrize("name", ["AMD Radeon Graphics", "GPU", "NVIDIA Graphics Device", " "])
def test_names_that_say_nothing_are_like_no_name(name: str) -> None:
    found = identify(Device(0, name, "gpu", 206141652992, 304, compute_capability="9.4"))
    assert found.name == "AMD Instinct MI300X"


def test_an_unknown_product_is_not_taken_for_another_one() -> None:
    unknown = Device(0, "AMD Instinct MI399X", "gpu", 206141652992, 304, compute_capability="9.4")
    found = identify(unknown)
    assert (found.name, found.spec) == ("AMD Instinct MI399X", None)


def test_the_clock_decides_between_boards() -> None:
    # 2.2 and 2.4 GHz, AMD's data sheets of the MI350X and the MI355X.
    assert identify(MI355X).name == "AMD Instinct MI355X"
    slower = Device(0, "", "gpu", 309220868096, 256, compute_capability="9.5", clock_hz=2.2e9)
    assert identify(slower).name == "AMD Instinct MI350X"


def test_boards_that_cannot_be_told_apart_count_as_the_slowest() -> None:
    found = identify(Device(0, "", "gpu", 309220868096, 256, compute_capability="9.5"))
    assert found.name == "AMD MI350X or MI355X"
    assert found.candidates == ("MI350X", "MI355X")
    assert found.spec is not None
    # MI350X 2306.9, MI355X 2516.6: 9 % apart.
    assert found.spec.peaks.flop_per_s("bf16") == 2306.9e12
    assert found.spec.memory_bytes == 288 * 2**30


def test_figures_that_differ_are_unknown() -> None:
    # RTX 6000 Ada, L40 and L40S have one chip. Their 16-bit rates are 364, 181 and 362 TFLOP/s.
    found = identify(Device(0, "", "gpu", 47_800_000_000, 142, compute_capability="8.9"))
    assert set(found.candidates) == {"RTX 6000 Ada", "L40", "L40S"}
    assert found.spec is not None
    assert found.spec.peaks.flop_per_s("bf16") is None
    assert found.spec.peaks.flop_per_s("fp32", tensor=False) == 90.5e12
    assert found.spec.link_bandwidth_bytes_per_s is None


def test_clock_and_bandwidth_tell_a_v100_from_its_siblings() -> None:
    assert identify(V100).name == "Tesla V100-SXM2-16GB"
    # With 32 GB and an unknown clock: SXM2, DGX Station, PCIe and V100S.
    unclear = Device(0, "", "gpu", 34089730048, 80, vendor="nvidia", compute_capability="7.0")
    found = identify(unclear)
    assert found.name == "NVIDIA V100 or V100S"
    assert found.spec is not None
    assert found.spec.peaks.flop_per_s("fp16") == 112e12  # PCIe; SXM2 has 125, the V100S 130
    assert found.spec.peaks.memory_bandwidth_bytes_per_s == 900e9  # the V100S has 1134
    assert found.spec.link == ""


def test_a_bandwidth_that_differs_too_much_is_unknown() -> None:
    # A device with 84 multiprocessors of capability 8.6 and 24 or 48 GiB: an A40 has 696 GB/s, an
    # RTX A6000 768, 10 % more; an RTX 3090 Ti has 1008, 45 % more than an A40.
    rows = {spec.name: spec for spec in known_devices()}
    bandwidth = {
        name: rows[name].peaks.memory_bandwidth_bytes_per_s
        for name in ("A40", "RTX A6000", "RTX 3090 Ti")
    }
    assert bandwidth == {"A40": 696e9, "RTX A6000": 768e9, "RTX 3090 Ti": 1008e9}
    found = identify(Device(0, "", "gpu", None, 84, vendor="nvidia", compute_capability="8.6"))
    assert set(bandwidth) <= set(found.candidates)
    assert found.spec is not None
    assert found.spec.peaks.memory_bandwidth_bytes_per_s is None


def test_export_variants_are_found_by_name_only() -> None:
    h100 = Device(0, "", "gpu", 85045477376, 132, vendor="nvidia", compute_capability="9.0")
    assert identify(h100).name == "NVIDIA H100 80GB HBM3"
    found = identify(Device(0, "NVIDIA H800", "gpu", 85045477376, 132, compute_capability="9.0"))
    assert (found.name, found.evidence) == ("NVIDIA H800", "")
    assert found.spec is not None
    assert found.spec.link_bandwidth_bytes_per_s == 200e9


def test_partitions_of_a_device_stay_unknown() -> None:
    slice_ = Device(0, "", "gpu", 20 * 2**30, 42, vendor="nvidia", compute_capability="8.0")
    found = identify(slice_)
    assert (found.name, found.spec) == (
        "NVIDIA GPU, compute capability 8.0, 42 multiprocessors",
        None,
    )


# --- kernels ----------------------------------------------------------------------------------

# Recorded names: kineto-old, param/linear, hta/trace_filter, quentin-tutorial, tracelens.
VOLTA = "volta_scudnn_128x64_relu_medium_nn_v1"
AMPERE = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_128x64_16x6_tn_align4>"
HOPPER = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize64x64x32_warpgroupsize1x1x1"
GFX942 = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_ISA942_IU1"


@pytest.mark.parametrize(
    ("kernel", "capability", "generation"),
    [
        (VOLTA, (7, 0), "Volta"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", (7, 5), "Turing"),
        (AMPERE, (8, 0), "Ampere"),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", (8, 0), "Ampere"),
        ("sm89_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x64", (8, 9), "Ada"),
        (HOPPER, (9, 0), "Hopper"),
        ("nvjet_tst_128x272_64x4_1x2_h_bz_coopB_TNT", (9, 0), "Hopper"),
        ("nvjet_sm103_tst_8x64_64x16_4x1_v_bz_TNN", (10, 3), "Blackwell"),
        (GFX942, (9, 4), "gfx942"),
        ("void ck_tile::kentry<ck_tile::gfx950_t, 2, ck_tile::FmhaFwdV3Kernel", (9, 5), "gfx950"),
    ],
)
def test_kernels_name_an_architecture(
    kernel: str, capability: tuple[int, int], generation: str
) -> None:
    found = built_for([kernel])
    assert found is not None
    assert (found.capability, found.generation) == (capability, generation)


def test_the_newest_architecture_counts_wherever_it_stands() -> None:
    for names in ([VOLTA, "memset", AMPERE], [AMPERE, "memset", VOLTA]):
        found = built_for(names)
        assert found is not None
        assert found.capability == (8, 0)


@pytest.mark.parametrize(
    "kernel",
    [
        "void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>",
        "void cudnn::cnn::wgrad_alg0_engine<float, 512, 6, 5, 3, 3, 3, false, 512>",
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "triton_poi_fused_add_sm_0",
        "maxwell_scudnn_128x64_relu_small_nn_v0",
    ],
)
def test_most_kernels_name_none(kernel: str) -> None:
    assert built_for([kernel]) is None


@pytest.mark.parametrize(
    ("kernel", "multiprocessors", "name"),
    [
        (VOLTA, 80, "NVIDIA V100 or V100S"),  # an A10G has 80, too, but runs kernels for Ampere
        (VOLTA, 68, "NVIDIA GeForce RTX 2080 Ti"),  # Turing runs kernels written for Volta
        (AMPERE, 108, "NVIDIA A100"),
        (AMPERE, 82, "NVIDIA GeForce RTX 3090"),  # so has an RTX PRO 4500, two generations newer
        (HOPPER, 132, "NVIDIA H100, H200 or GH200"),
        (VOLTA, None, "NVIDIA GPU (Volta or newer)"),
        (GFX942, None, "AMD GPU (gfx942)"),
    ],
)
def test_kernels_and_multiprocessors(kernel: str, multiprocessors: int | None, name: str) -> None:
    device = Device(0, "", "gpu", multiprocessors=multiprocessors)
    found = identify(device, lambda: ["memset", kernel])
    assert found.name == name
    assert (found.spec is None) == (multiprocessors is None)
    assert "kernels written for" in found.evidence


def test_without_anything_nothing_is_known() -> None:
    found = identify(Device(0, "", "gpu"), lambda: ["vectorized_elementwise_kernel"])
    assert (found.name, found.spec, found.evidence) == ("", None, "")
    accelerator = identify(Device(0, "", "other", multiprocessors=80), lambda: [VOLTA])
    assert (accelerator.name, accelerator.spec) == ("", None)


# --- names from users -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("H100 SXM5 80GB", "H100 SXM5 80GB"),
        ("nvidia h100 80gb hbm3", "H100 SXM5 80GB"),
        ("MI300X", "MI300X"),
        ("RTX 5090", "RTX 5090"),
        ("5090", "RTX 5090"),
        ("TPU v6e", "TPU v6e (Trillium)"),
        ("H200 NVL", "H200 NVL 141GB"),
        ("GB300", "GB300 279GB"),
    ],
)
def test_users_may_shorten_a_name(name: str, row: str) -> None:
    assert named_device(name).name == row


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("H100", "several devices", "H100 SXM5 80GB, H100 PCIe 80GB, H100 NVL 94GB"),
        ("A100", "several devices", "A100 SXM4 40GB, A100 SXM4 80GB, A100 PCIe 40GB"),
        ("H100 SMX5 80GB", "no device called 'H100 SMX5 80GB'", "H100 SXM5 80GB"),
        ("MI300", "several devices", "MI300A, MI300X"),
        ("abacus", "no device called 'abacus'", ""),
        ("", "no device called ''", ""),
    ],
)
def test_unknown_names_list_similar_ones(name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        named_device(name)
    assert hint in caught.value.hint
