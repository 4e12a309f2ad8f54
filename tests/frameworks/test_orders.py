"""Work that another order would spare, in small PyTorch programs: slow and mended."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tests.support.examined_steps import look, training  # noqa: E402


@pytest.mark.parametrize("way", ["plain", "normalized", "scaled", "transposed"])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_attention_without_a_softmax(way: str, is_fixed: bool) -> None:
    project = nn.Linear(32, 96)

    def loss() -> torch.Tensor:
        q, k, v = (project(torch.randn(2, 400, 32)) * 1.0).view(2, 400, 3, 2, 16).unbind(2)
        q, k, v = (functional.elu(each.transpose(1, 2)) + 1 for each in (q, k, v))
        if is_fixed:
            return (q @ (k.transpose(-2, -1) @ v)).square().mean()
        if way == "transposed":  # the scores of keys by queries
            return ((k @ q.transpose(-2, -1)).transpose(-2, -1) @ v).square().mean()
        scores = q @ k.transpose(-2, -1)
        if way == "scaled":
            scores = scores * 0.25
        if way == "normalized":
            scores = scores / scores.sum(-1, keepdim=True)
        return (scores @ v).square().mean()

    found = look(training(project, loss), "product order")
    if is_fixed:
        assert found == ()
        return
    assert found[0].operator == "aten::bmm"
    assert found[0].amount == pytest.approx(16 / 400, rel=0.01)  # k w (p + q) / (p q (k + w))
    assert sum(each.share for each in found) > 0.4  # forward and backward


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_sum_of_rows_reads_the_scores_too(is_fixed: bool) -> None:
    def step() -> torch.Tensor:
        q, k, v = torch.rand(3, 4, 500, 16)
        if is_fixed:
            return (q @ (k.mT @ v)) / (q @ k.sum(1).unsqueeze(-1))
        scores = q @ k.mT
        return (scores @ v) / scores.sum(-1, keepdim=True)

    assert bool(look(step, "product order")) is not is_fixed


@pytest.mark.parametrize("is_fixed", [False, True])
def test_factors_of_a_weight(is_fixed: bool) -> None:
    low, high = (nn.Parameter(torch.randn(shape)) for shape in ((512, 8), (8, 512)))
    model = nn.ParameterList((low, high))

    def loss() -> torch.Tensor:
        x = torch.randn(64, 512)
        return ((x @ low) @ high if is_fixed else x @ (low @ high)).square().mean()

    found = look(training(model, loss), "product order")
    assert bool(found) is not is_fixed
    if found:
        # 8 * 64 * 1024 multiplications instead of 512 * 512 * (8 + 64)
        assert found[0].amount == pytest.approx(8 * 64 * 1024 / (512 * 512 * 72), rel=0.01)


@pytest.mark.parametrize("between", ["softmax", "mask", "relu", "bias", "read twice", "few"])
def test_products_whose_order_is_given(between: str) -> None:
    mask = torch.ones(400, 400).tril().bool()

    def step() -> object:
        n = 12 if between == "few" else 400
        q, k, v = torch.randn(3, 2, n, 16)
        scores = q @ k.mT
        if between == "softmax":
            scores = scores.softmax(-1)
        if between == "mask":
            scores = scores * mask
        if between == "relu":
            scores = scores.relu()
        if between == "bias":
            scores = scores + torch.ones(n)
        kept = scores.square() if between == "read twice" else None
        return scores @ v, kept

    assert look(step, "product order") == ()


@pytest.mark.parametrize("taps", [1500, 5])
@pytest.mark.parametrize("is_trained", [False, True])
def test_a_long_kernel(taps: int, is_trained: bool) -> None:
    kernel = nn.Parameter(torch.randn(1, 1, taps))

    def loss() -> torch.Tensor:
        return functional.conv1d(torch.randn(4, 1, 12_000), kernel).square().mean()

    step = training(nn.ParameterList((kernel,)), loss) if is_trained else lambda: loss().detach()
    found = look(step, "long kernel")
    assert bool(found) is (taps > 100)
    if found:
        assert found[0].operator in ("aten::convolution", "aten::conv1d")
        assert found[0].amount < 0.6


@pytest.mark.parametrize("channels", [1, 64])
def test_long_kernels_of_several_channels(channels: int) -> None:
    layer = nn.Conv1d(channels, channels, 257, groups=channels)

    def step() -> torch.Tensor:
        return layer(torch.randn(2, channels, 4000))

    for each in look(step, "long kernel"):
        assert 0 < each.amount < 0.6


@pytest.mark.parametrize("way", ["index", "index_select"])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_table_in_another_order(way: str, is_fixed: bool) -> None:
    table = torch.randn(60, 40_000)
    by_number = table.T.contiguous()
    numbers = torch.arange(0, 40_000, 160)

    def step() -> torch.Tensor:
        if is_fixed:
            return by_number[numbers] if way == "index" else by_number.index_select(0, numbers)
        return table[:, numbers].T if way == "index" else table.index_select(1, numbers).T

    found = look(step, "scattered reads")
    assert bool(found) is not is_fixed
    if found:
        assert found[0].operator == f"aten::{way}"
        assert found[0].amount == pytest.approx(4 / 60)  # 240 bytes: four lines, not 60


@pytest.mark.parametrize(
    "why", ["small", "neighbors", "mask", "changes", "rows", "expanded", "sparse"]
)
def test_other_lookups_are_no_scattered_reads(why: str) -> None:
    table = torch.randn(60, 400 if why == "small" else 40_000)

    def step() -> torch.Tensor:
        read = torch.randn(60, 40_000) if why == "changes" else table
        if why == "expanded":
            return read[:, :1].expand(-1, 40_000)[:, torch.randint(0, 40_000, (256,))]
        if why == "sparse":
            return torch.eye(1200).to_sparse().index_select(1, torch.arange(0, 1200, 5)).to_dense()
        if why == "mask":
            return read[:, torch.arange(40_000) % 3 == 0]
        if why == "rows":
            return read[torch.randint(0, 60, (8,))]
        begin = 1000 if why == "neighbors" else 0
        numbers = torch.arange(begin, begin + 256)
        return read[:, numbers if why == "neighbors" else torch.randint(0, read.shape[1], (256,))]

    assert look(step, "scattered reads") == ()
