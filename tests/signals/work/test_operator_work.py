from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tb_perfadvisor import load
from tb_perfadvisor.signals.work.operator_inputs import Matmul, Work
from tb_perfadvisor.signals.work.operator_work import work_of_operator
from tb_perfadvisor.trace import KernelFamily


def known_work(
    name: str, shapes: list[object], dtypes: list[str], values: list[str] | None = None
) -> Work:
    known = work_if_known(name, shapes, dtypes, values)
    assert known is not None
    return known


def work_if_known(
    name: str, shapes: list[object], dtypes: list[str], values: list[str] | None = None
) -> Work | None:
    text = "" if values is None else json.dumps(values)
    return work_of_operator(f"aten::{name}", json.dumps(shapes), ";".join(dtypes), text)


F32, BF16 = "float", "c10::BFloat16"


def test_matrix_product() -> None:
    # From a vision transformer: 788 x 768 by 768 x 3072, so 2 x 788 x 3072 x 768 FLOP.
    work = known_work(
        "addmm", [[3072], [788, 768], [768, 3072], [], []], [BF16] * 3 + ["Scalar"] * 2
    )
    assert work.family is KernelFamily.MATMUL
    assert work.matmul == Matmul(1, 788, 3072, 768)
    assert work.flop == 3_718_250_496
    # Two bytes for each of 3072 + 605,184 + 2,359,296 + 2,420,736 elements.
    assert work.traffic_bytes == 2 * (3072 + 605_184 + 2_359_296 + 2_420_736)
    assert work.number_format == "bf16"


def test_batched_products() -> None:
    work = known_work("bmm", [[16, 128, 64], [16, 64, 32]], [F32, F32])
    assert work.matmul == Matmul(16, 128, 32, 64)
    assert work.flop == 2 * 16 * 128 * 32 * 64
    added = known_work("baddbmm", [[16, 128, 32], [16, 128, 64], [16, 64, 32]], [F32] * 3)
    assert added.flop == work.flop
    assert added.traffic_bytes - work.traffic_bytes == 4 * 16 * 128 * 32
    # A linear layer with an input of (3, 5, 8) and a weight of (7, 8).
    assert known_work("linear", [[3, 5, 8], [7, 8], [7]], [F32] * 3).matmul == Matmul(1, 15, 7, 8)
    assert known_work("mv", [[100, 30], [30]], [F32, F32]).flop == 2 * 100 * 30


def test_8_bit_product() -> None:
    types = ["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", F32, F32]
    work = known_work("_scaled_mm", [[64, 128], [128, 32], [], []], types)
    assert work.number_format == "fp8"
    assert work.traffic_bytes == 64 * 128 + 128 * 32 + 2 * 64 * 32


# The first convolution of ResNet-50: 3 to 64 channels, a 7 x 7 window, stride 2.
STEM = [[32, 3, 224, 224], [64, 3, 7, 7], [], [], [], [], [], [], []]
STEM_TYPES = [F32, F32, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]
STEM_FLOP = 2 * (32 * 64 * 112 * 112) * (3 * 7 * 7)


def test_convolution() -> None:
    values = ["", "", "", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]
    work = known_work("convolution", STEM, STEM_TYPES, values)
    assert work.family is KernelFamily.CONVOLUTION
    assert work.flop == STEM_FLOP
    assert work.matmul == Matmul(1, 32 * 112 * 112, 64, 147)
    # cuDNN's operator takes padding before stride, and no bias.
    types = [F32, F32, *["ScalarList"] * 3, *["Scalar"] * 4]
    cudnn = known_work(
        "cudnn_convolution",
        STEM,
        types,
        ["", "", "[3, 3]", "[2, 2]", "[1, 1]", "1", *["False"] * 3],
    )
    assert cudnn == work
    assert work_if_known("cudnn_convolution", STEM, types) is None  # strides are unknown


def test_convolution_with_groups_dilation_and_one_value_for_all_sides() -> None:
    values = ["", "", "", "[1]", "[2]", "[2]", "False", "[0]", "4"]
    shapes: list[object] = [[2, 16, 10, 10], [32, 4, 3, 3], [], [], [], [], [], [], []]
    work = known_work("convolution", shapes, STEM_TYPES, values)
    # 10 + 2*2 - 2*(3-1) = 10 positions per side; each of 32 channels reads 4 x 9 inputs.
    assert work.flop == 2 * (2 * 32 * 10 * 10) * (4 * 9)
    assert work.matmul == Matmul(4, 200, 8, 36)


def test_convolution_backward_counts_each_requested_gradient() -> None:
    shapes: list[object] = [[32, 64, 112, 112], *STEM[:2], *[[]] * 8]
    types = [F32, F32, F32, *["ScalarList"] * 4, "Scalar", "ScalarList", "Scalar", "ScalarList"]
    options = ["", "", "", "[0]", "[2, 2]", "[3, 3]", "[1, 1]", "False", "[0, 0]", "1"]
    both = known_work("convolution_backward", shapes, types, [*options, "[True, True, False]"])
    assert both.flop == 2 * STEM_FLOP
    # The first layer's input needs no gradient.
    assert (
        known_work("convolution_backward", shapes, types, [*options, "[False, True, False]"]).flop
        == STEM_FLOP
    )
    # Before PyTorch 1.11, each library had its own operator, whose shapes suffice.
    old: list[object] = [STEM[0], [32, 64, 112, 112], STEM[1], [], [], [], [], [], [], [], []]
    assert known_work("cudnn_convolution_backward", old, [F32] * 3 + ["GenericList"] * 8) == both


def test_attention_takes_two_products_and_a_causal_mask_halves_them() -> None:
    shape = [4, 197, 12, 64]  # batch, length, heads, size
    types = [BF16] * 3 + ["", "", *["Scalar"] * 5]
    values = ["", "", "", "", "", "197", "197", "0.", "False", "False"]
    shapes: list[object] = [shape] * 3 + [[]] * 7
    work = known_work("_flash_attention_forward", shapes, types, values)
    assert work.family is KernelFamily.ATTENTION
    assert work.flop == 2 * 2 * (4 * 12) * 197 * 197 * 64  # QKᵀ and PV
    assert work.traffic_bytes == 4 * 2 * (4 * 197 * 12 * 64)  # three read, one written
    values[8] = "True"
    assert known_work("_flash_attention_forward", shapes, types, values).flop == work.flop / 2
    heads_second = [4, 12, 197, 64]
    same = known_work(
        "_scaled_dot_product_flash_attention",
        [heads_second] * 3 + [[]] * 2,
        [BF16] * 3 + ["Scalar"] * 2,
        ["", "", "", "0.", "False"],
    )
    assert same == work


def test_attention_backward_takes_five_products() -> None:
    shapes: list[object] = [[2, 8, 64, 32]] * 5 + [[2, 8, 64]] + [[]] * 2
    work = known_work(
        "_scaled_dot_product_flash_attention_for_cpu_backward",
        shapes,
        [F32] * 6 + ["Scalar"] * 2,
        ["", "", "", "", "", "", "0.", "False"],
    )
    assert work.flop == 5 * 2 * 16 * 64 * 64 * 32
    assert work.traffic_bytes == 8 * 4 * (2 * 8 * 64 * 32)


@pytest.mark.parametrize("window", ["-1 -1", "-1 0", "256 0"])
def test_flash_attn_has_operators_of_its_own(window: str) -> None:
    # flash_attn/flash_attn_interface.py: queries of 8 heads, keys and values of 2.
    query, keys = [4, 1024, 8, 64], [4, 1024, 2, 64]
    statistics: list[object] = [4, 8, 1024]
    forward = (
        [query, keys, keys, *[[]] * 8],
        ["", "", "", "0.", "0.125", "True", *window.split(), "0.", "", "False"],
    )
    backward = (
        [query, query, keys, keys, query, statistics, query, keys, keys, *[[]] * 7],
        [*[""] * 9, "0.", "0.125", "True", *window.split(), "0.", "", "False"],
    )
    scores = 2 * (4 * 8) * 1024 * 1024 * 64  # FLOP of one product
    for suffix, (shapes, values), executed, model in (
        ("forward", forward, 2 / 2, 2),
        ("backward", backward, 5 / 2, 4),
    ):
        types = ";".join(BF16 if shape else "Scalar" for shape in shapes)
        name = f"flash_attn::_flash_attn_{suffix}"
        work = work_of_operator(name, json.dumps(shapes), types, json.dumps(values))
        if window == "256 0":
            assert work is None
        else:
            assert work is not None
            assert (work.flop, work.model_flop) == (executed * scores, model * scores)


@pytest.mark.parametrize(("longest", "is_known"), [("200", True), ("300", False)])
def test_attention_of_packed_sequences_is_known_if_all_are_equally_long(
    longest: str, is_known: bool
) -> None:
    # Four sequences in 800 rows: of 200 each, if none is longer.
    shapes: list[object] = [[1, 800, 8, 64]] * 3 + [[], [5], [5], [], [], [], []]
    types = [BF16] * 3 + ["", "int", "int", *["Scalar"] * 4]
    values = ["", "", "", "", "", "", longest, longest, "0.", "0"]
    work = work_if_known("_efficient_attention_forward", shapes, types, values)
    # Two products of 2 x 200 x 200 x 64 FLOP for each of 8 heads.
    assert (work is not None) == is_known
    assert work is None or work.flop == 2 * (4 * 8) * 2 * 200 * 200 * 64


def test_packed_sequences_of_flash_attention() -> None:
    # torch.nn.attention.varlen: 3 sequences of 512 tokens, 16 heads of 64, two for keys; causal.
    forward = ([[1536, 16, 64], *[[1536, 2, 64]] * 2, [4], [4], *[[]] * 5], 5, 8)
    backward = (
        [[1536, 16, 64], [1536, 16, 64], *[[1536, 2, 64]] * 2, [1536, 16, 64], [16, 1536], [4], [4],
         *[[]] * 4], 8, 11,
    )  # fmt: skip
    scores = 2 * (3 * 16) * 512 * 512 * 64
    for name, (shapes, longest, causal), executed, model in (
        ("_flash_attention_forward", forward, 2 / 2, 2),
        ("_flash_attention_backward", backward, 5 / 2, 4),
    ):
        types = ["int" if shape == [4] else BF16 if shape else "Scalar" for shape in shapes]
        values = [""] * len(shapes)
        values[longest] = values[longest + 1] = "512"
        values[causal] = "True"
        work = work_if_known(name, list(shapes), types, values)
        assert work is not None
        assert (work.flop, work.model_flop) == (executed * scores, model * scores)


@pytest.mark.parametrize(
    ("shapes", "flop"),
    [
        # As recorded with PyTorch 2.13: forward, and the gradients of weights and activations.
        ([[1024, 64], [2, 64, 32], [2]], 2 * 1024 * 64 * 32),
        ([[64, 1024], [1024, 32], [2]], 2 * 1024 * 64 * 32),
        ([[1024, 32], [2, 32, 64], [2]], 2 * 1024 * 64 * 32),
        # Columns are divided among groups.
        ([[2, 32, 64], [64, 1024], [2]], 2 * 1024 * 64 * 32),
        # Each group has a product of its own.
        ([[2, 8, 64], [2, 64, 32], []], 2 * 2 * 8 * 64 * 32),
        # 512 rows for each of two groups suffice, 256 for each of four do not.
        ([[1024, 64], [4, 64, 32], [4]], None),
    ],
)
def test_grouped_products(shapes: list[object], flop: int | None) -> None:
    types = [BF16, BF16, "int" if shapes[2] else ""]
    work = work_if_known("_grouped_mm", [*shapes, [], []], [*types, "", ""])
    assert (None if work is None else work.flop) == flop


@pytest.mark.parametrize(
    ("name", "shapes", "flop"),
    [
        ("triton_tem_fused_mm_25", [[512, 64], [64, 32], [512, 32]], 2 * 512 * 64 * 32),
        # A transposed weight, a bias, and rows that are still divided into a batch.
        (
            "triton_tem_fused_addmm_relu_2",
            [[32], [4, 128, 64], [32, 64], [512, 32]],
            2 * 512 * 64 * 32,
        ),
        ("triton_tem_fused_bmm_8", [[8, 16, 64], [8, 64, 32], [8, 16, 32]], 2 * 8 * 16 * 64 * 32),
        # The residual that is added could be an operand as well, and the sums would be shorter.
        ("triton_tem_fused_mm_add_3", [[512, 64], [64, 32], [512, 32], [32, 32], [512, 32]], None),
        ("triton_tem_fused_convolution_0", [[512, 64], [64, 32], [512, 32]], None),
        ("triton_tem_fused_26", [[512, 64], [64, 32], [512, 32]], None),
    ],
)
def test_products_of_inductor_templates(
    name: str, shapes: list[list[int]], flop: int | None
) -> None:
    work = work_of_operator(name, json.dumps(shapes), ";".join([BF16] * len(shapes)), "")
    assert (None if work is None else work.flop) == flop


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes", "flop", "traffic_bytes"),
    [
        ("add", [[32, 256], [32, 256], []], [F32, F32, "Scalar"], 8192, 3 * 4 * 8192),
        ("add_", [[32, 256], [256], []], [F32, F32, "Scalar"], 8192, 4 * (2 * 8192 + 256)),
        ("mul", [[64, 8], []], [BF16, "double"], 512, 2 * 2 * 512 + 8),  # multiplied by a number
        ("clamp_min", [[64], [], [64]], [F32, "Int", F32], 64, 2 * 4 * 64),  # the third is out=
        ("eq", [[100], [100]], ["long int", "long int"], 100, 2 * 800 + 100),
        ("copy_", [[100], [100], []], [BF16, F32, "Scalar"], 0, 200 + 400),  # a cast
        ("fill_", [[100], []], [F32, "Scalar"], 0, 400),
        ("native_layer_norm", [[4, 100], []], [F32, "ScalarList"], 3200, 2 * 4 * 400),
        ("cudnn_batch_norm_backward", [[4, 100], [4, 100]], [F32, F32], 6400, 3 * 4 * 400),
        ("_softmax", [[8, 50], [], []], [F32, "Scalar", "Scalar"], 2000, 2 * 4 * 400),
        ("sum", [[1000], []], [F32, ""], 1000, 4000),
        ("embedding", [[50, 16], [4, 7]], [F32, "long int"], 0, 2 * 28 * 16 * 4 + 28 * 8),
    ],
)
def test_memory_bound_operators(
    name: str, shapes: list[object], dtypes: list[str], flop: float, traffic_bytes: float
) -> None:
    work = known_work(name, shapes, dtypes)
    assert (work.flop, work.traffic_bytes) == (flop, traffic_bytes)


def test_compiled_kernel_moves_its_arguments() -> None:
    work = work_of_operator(
        "triton_poi_fused_gelu_8",
        "[[4,1024],[4,1024],[]]",
        "c10::BFloat16;c10::BFloat16;Scalar",
        "",
    )
    assert work is not None
    assert work.traffic_bytes == 2 * 2 * 4096


@pytest.mark.parametrize(
    ("name", "shapes", "dtypes"),
    [
        ("mm", [[2, 3]], [F32]),  # an input is missing
        ("mm", [[2, 3], [4, 5]], [F32, F32]),  # the inner sizes differ
        ("mm", [[], []], ["TensorList", "TensorList"]),
        ("mm", [["x", 3], [3, 5]], [F32, F32]),
        ("unheard_of", [[2, 3]], [F32]),
    ],
)
def test_work_of_invalid_inputs_is_unknown(
    name: str, shapes: list[object], dtypes: list[str]
) -> None:
    assert work_if_known(name, shapes, dtypes) is None


def test_work_of_invalid_json_is_unknown() -> None:
    assert work_of_operator("aten::mm", "[[2,3", "float;float", "") is None
    assert work_of_operator("aten::mm", '{"a":1}', "float;float", "") is None


RECORD = """
import sys, torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 5, stride=2, padding=1, dilation=2)
        self.grouped = nn.Conv2d(16, 24, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(24, 8, 3, stride=2, output_padding=1)
        self.head = nn.Linear(8, 12)

    def forward(self, x):
        x = self.up(self.grouped(self.stem(x)))
        return torch.bmm(self.head(x.mean((2, 3)))[:, None], torch.ones(len(x), 12, 5))

net, x = Net(), torch.randn(2, 3, 40, 36)
net(x).sum().backward()
with FlopCounterMode(display=False) as counter:
    net(x)
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    net(x)
profiler.export_chrome_trace(sys.argv[1] + "/forward.pt.trace.json")
print(counter.get_total_flops())
a, b = torch.randn(7, 11, requires_grad=True), torch.randn(11, 5, requires_grad=True)
c = nn.Conv2d(6, 4, 3, stride=2)
y = torch.randn(2, 6, 20, 20, requires_grad=True)
def step():
    ((a @ b).sum() + c(y).sum()).backward()
with FlopCounterMode(display=False) as counter:
    step()
with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
    step()
profiler.export_chrome_trace(sys.argv[1] + "/backward.pt.trace.json")
print(counter.get_total_flops())
"""
COUNTED = {
    "aten::mm",
    "aten::addmm",
    "aten::bmm",
    "aten::convolution",
    "aten::convolution_backward",
}


@pytest.mark.frameworks
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_torch_counts_the_same_flop(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORD, str(tmp_path)], capture_output=True, text=True, check=True
    )
    expected = [float(line) for line in done.stdout.split()]
    for name, flop in zip(("forward", "backward"), expected, strict=True):
        (run,) = load(tmp_path / f"{name}.pt.trace.json")
        trace = run.traces[0]
        table, text = trace.operators, trace.text
        total = 0.0
        for row, shapes, dtypes, values in zip(
            table.row, table.shapes, table.dtypes, table.values, strict=True
        ):
            if trace.name(int(row)) in COUNTED:
                operator_work = work_of_operator(
                    trace.name(int(row)), text(int(shapes)), text(int(dtypes)), text(int(values))
                )
                assert operator_work is not None, trace.name(int(row))
                total += operator_work.flop
        assert total == flop > 0
