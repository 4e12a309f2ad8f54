"""What small PyTorch programs compute and do not need: slow and mended, in several shapes."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from tb_perfadvisor.instrument.examination.findings import examined  # noqa: E402
from tb_perfadvisor.instrument.examination.watching import Watching  # noqa: E402
from tests.support.examined_steps import look, training  # noqa: E402


def labels_of(*shape: int, every: int, classes: int) -> torch.Tensor:
    """Classes, of which all but every n-th are ignored."""
    labels = torch.randint(0, classes, shape)
    labels.view(-1)[torch.arange(labels.numel()) % every != 0] = -100
    return labels


@pytest.mark.parametrize(
    ("batch", "length", "width", "classes"), [(4, 64, 32, 800), (16, 40, 48, 300)]
)
@pytest.mark.parametrize("is_fixed", [False, True])
def test_logits_of_ignored_targets(
    batch: int, length: int, width: int, classes: int, is_fixed: bool
) -> None:
    head = nn.Linear(width, classes)
    labels = labels_of(batch, length, every=8, classes=classes)

    def loss() -> torch.Tensor:
        x = torch.randn(batch, length, width)
        if is_fixed:
            return functional.cross_entropy(head(x[labels != -100]), labels[labels != -100])
        return functional.cross_entropy(head(x).flatten(0, 1), labels.flatten())

    found = look(training(head, loss), "unused")
    if is_fixed:
        assert found == ()
    else:
        assert found[0].amount == pytest.approx(1 / 8)
        assert sum(each.share for each in found) > 0.6  # forward and backward


@pytest.mark.parametrize("way", ["multiplied", "filled", "chosen", "indexed"])
def test_logits_that_a_mask_drops(way: str) -> None:
    head = nn.Linear(48, 600)
    counts = (torch.arange(8 * 50) % 10 == 0).view(8, 50)
    labels = torch.randint(0, 600, (8, 50))

    def loss() -> torch.Tensor:
        logits = head(torch.randn(8, 50, 48))
        if way == "indexed":
            return functional.cross_entropy(logits[counts], labels[counts])
        each = functional.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        if way == "multiplied":
            return (each * counts).sum() / counts.sum()
        if way == "filled":
            return each.masked_fill(~counts, 0.0).sum()
        return torch.where(counts, each, 0.0).sum()

    found = look(training(head, loss), "unused")
    if way == "indexed":
        assert found[0].amount == pytest.approx(0.1, abs=0.02)
    # The class is not the last axis there, so that rows cannot be told from columns.


def test_losses_of_rows_that_a_mask_drops() -> None:
    head = nn.Linear(48, 600)
    counts = (torch.arange(400) % 10 == 0).float()

    def loss() -> torch.Tensor:
        logits = head(torch.randn(400, 48))
        chances = functional.log_softmax(logits, -1)
        return -(chances.logsumexp(-1) * counts).sum()

    assert look(training(head, loss), "unused")[0].amount == pytest.approx(0.1, abs=0.02)


def test_dropout_is_no_mask() -> None:
    layers = nn.Sequential(nn.Linear(64, 256), nn.Dropout(0.9), nn.Linear(256, 64))
    step = training(layers, lambda: layers(torch.randn(128, 64)).square().mean())
    assert look(step, "unused") == ()


def test_layers_before_a_sum_of_two_paths_are_needed() -> None:
    first, second = nn.Linear(64, 64), nn.Linear(64, 64)
    both = nn.ModuleList((first, second))

    def loss() -> torch.Tensor:
        x = torch.randn(16, 32, 64)
        return (x + second(first(x).relu()))[:, -1].square().mean()

    # A block of a model before its last position is selected; it needs other changes.
    found = look(training(both, loss), "unused")
    assert {each.operator for each in found} <= {"aten::add"}


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_table_for_each_column(is_fixed: bool) -> None:
    sizes = [5 + 3 * number for number in range(20)]
    tables = nn.ModuleList(nn.Embedding(size, 4) for size in sizes)
    table = nn.Embedding(sum(sizes), 4)
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)

    def loss() -> torch.Tensor:
        codes = torch.stack([torch.randint(0, size, (64,)) for size in sizes], 1)
        if is_fixed:
            return table(codes + starts).flatten(1).square().mean()
        return torch.cat([each(codes[:, at]) for at, each in enumerate(tables)], 1).square().mean()

    found = look(training(table if is_fixed else tables, loss), "independent")
    found = tuple(each for each in found if each.operator == "aten::embedding")
    assert [each.amount for each in found] == ([] if is_fixed else [20])
    assert is_fixed or found[0].updates > 0.9  # one table has one update


def test_the_same_call_again_is_no_call_for_many() -> None:
    layer = nn.Linear(32, 32)
    x = torch.randn(64, 32)
    step = training(layer, lambda: torch.stack([layer(x).square().mean() for _ in range(6)]).sum())
    assert look(step, "independent") == ()
    assert look(step, "same twice")


def test_gradients_through_a_sum_are_followed() -> None:
    body, around, head = nn.Linear(400, 600), nn.Linear(400, 600), nn.Linear(600, 4)

    def loss() -> torch.Tensor:
        x = torch.randn(400, 400)
        return head(body(x) + around(x)).square().mean()

    found = look(training(head, loss), "dropped gradients")
    # The gradients of both layers, and the one that only leads to them: all but the head's.
    assert sum(each.share for each in found) > 0.2


@pytest.mark.parametrize("is_unbound", [False, True])
def test_queries_keys_and_values_of_one_product_are_all_needed(is_unbound: bool) -> None:
    layer, heads = nn.Linear(64, 3 * 64), 4

    def loss() -> torch.Tensor:
        x = torch.randn(8, 48, 64)
        made = layer(x).view(8, 48, 3, heads, 16).permute(2, 0, 3, 1, 4)
        q, k, v = made if is_unbound else (made[0], made[1], made[2])
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.square().mean()

    assert look(training(layer, loss), "unused") == ()


class TwoHeads(nn.Module):
    """Returns the results of both."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 128), nn.Linear(128, 10)
        self.other = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 50))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = self.body(x).relu()
        self.inside = self.other[:2](hidden)
        return self.head(hidden), self.other[2](self.inside)


@pytest.mark.parametrize(
    "way", ["unread", "loss", "NumPy", "hidden", "list", "later", "evaluation"]
)
def test_a_head_that_nothing_reads(way: str) -> None:
    model = TwoHeads()
    kept = []

    def loss() -> torch.Tensor:
        first, second = model(torch.randn(256, 64))
        if way == "loss":
            return (first.mean() + second.mean()).square()
        if way == "NumPy":
            assert second.detach().numpy().shape == (256, 50)
        if way == "hidden":  # a result that autograd keeps as well
            assert torch.relu(model.inside).detach().numpy().shape == (256, 128)
        if way == "list":
            assert len(second.data.tolist()) == 256
        if way == "later":
            kept.append(second)
        return first.square().mean()

    def evaluation() -> None:
        with torch.no_grad():
            assert len(loss().numpy()[None]) == 1  # what NumPy reads, no operator shows

    found = look(evaluation if way == "evaluation" else training(model, loss), "unused")
    if way == "hidden":  # what comes behind it is not read
        assert [each.shapes for each in found] == ["(50) × (256, 128) × (128, 50)"]
        return
    assert [each.amount for each in found] == ([0.0] * len(found) if way == "unread" else [])
    # Products of 128 * (128 + 50) numbers for each row. All others, with their gradients, are of
    # 64 * 128 * 2 + 128 * 10 * 3.
    assert sum(each.share for each in found) > (0.3 if way == "unread" else -1)


def test_gradients_that_the_program_gives_need_their_graph() -> None:
    layer = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), 0.01)

    def step() -> None:
        y = layer(torch.randn(128, 64)).relu()
        y.backward(torch.ones(128, 64))  # reads no number of y
        optimizer.step()

    assert look(step, "unused") == ()


def test_calls_of_models_are_counted_and_shapes_that_change() -> None:
    inner, head = nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 2)
    rows = iter(range(2, 20))

    def sample() -> None:
        with torch.no_grad():
            x = torch.randn(next(rows), 8)
            for _ in range(5):
                x = inner(x) * 0.5
            head(x)

    with Watching() as watching:
        ends = [0]
        for _ in range(3):
            sample()
            ends.append(len(watching.calls))
    found = examined([watching.calls[a:b] for a, b in pairwise(ends)], watching)
    assert found.failed == ()
    assert found.model_calls == 6
    # Of each step: 11 operators in modules, and 6 others, to draw and to multiply.
    assert found.in_models == pytest.approx(11 / 17)
    assert found.new_shapes == 1  # no step before had so many rows
