"""What small PyTorch programs compute and do not need: slow and mended, in several shapes."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

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


@pytest.mark.parametrize(("length", "layers"), [(512, 3), (300, 4)])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_context_longer_than_the_receptive_field(
    length: int, layers: int, is_fixed: bool
) -> None:
    stack = nn.ModuleList(nn.Conv1d(8, 8, 2, dilation=2**number) for number in range(layers))
    seen = 2**layers

    def step() -> torch.Tensor:
        x = torch.randn(4, 8, seen if is_fixed else length)
        with torch.no_grad():
            for number, layer in enumerate(stack):
                x = x + layer(functional.pad(x, (2**number, 0))).tanh()
        return x[:, :, -1].argmax(1)

    found = look(step, "unused")
    if is_fixed:
        assert found == ()
    else:
        assert found[0].amount <= seen / length
        assert sum(each.share for each in found) > 0.5


def test_a_convolution_whose_places_are_all_read() -> None:
    layer = nn.Conv1d(8, 8, 3, padding=1)
    step = training(layer, lambda: layer(torch.randn(4, 8, 256)).mean(2).square().sum())
    assert look(step, "unused") == ()


@pytest.mark.parametrize(("points", "neighbors"), [(200, 8), (256, 16)])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_neighbors(points: int, neighbors: int, is_fixed: bool) -> None:
    layer = nn.Linear(3, 16)

    def loss() -> torch.Tensor:
        x = torch.randn(4, points, 3)
        apart = torch.cdist(x, x)
        if is_fixed:
            near = apart.topk(neighbors, largest=False).indices
        else:
            near = apart.argsort(-1)[..., :neighbors]
        rows = near + points * torch.arange(4)[:, None, None]
        return layer(x.flatten(0, 1))[rows.flatten()].square().mean()

    found = look(training(layer, loss), "sorted for few")
    assert [round(1 / each.amount) for each in found] == ([] if is_fixed else [points // neighbors])


def test_a_random_batch() -> None:
    data = torch.randn(20_000, 4)
    layer = nn.Linear(4, 4)
    step = training(layer, lambda: layer(data[torch.randperm(20_000)[:64]]).square().mean())
    assert [each.operator for each in look(step, "sorted for few")] == ["aten::randperm"]


def test_an_order_that_is_used_is_needed() -> None:
    layer = nn.Linear(4, 4)

    def loss() -> torch.Tensor:
        x = torch.randn(5_000, 4)
        return layer(x[x[:, 0].argsort()]).cumsum(0).square().mean()

    assert look(training(layer, loss), "sorted for few") == ()


@pytest.mark.parametrize("way", ["expanded", "repeated", "indexed", "whole"])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_pairs(way: str, is_fixed: bool) -> None:
    first = nn.Linear(512, 256)  # wide: adding two parts takes little of that
    ends = torch.randint(0, 40, (2, 3000))

    def loss() -> torch.Tensor:
        x = torch.randn(40, 256)
        left, right = first.weight.t().chunk(2)
        if way == "indexed":
            if is_fixed:
                return ((x @ left)[ends[0]] + (x @ right)[ends[1]]).relu().mean()
            return first(torch.cat([x[ends[0]], x[ends[1]]], -1)).relu().mean()
        if is_fixed:
            return ((x @ left)[:, None] + (x @ right)[None]).relu().mean()
        if way == "repeated":
            pairs = torch.cat([x.repeat_interleave(40, 0), x.repeat(40, 1)], -1)
        elif way == "whole":
            each = x.mean(0, keepdim=True).expand(1600, 256)
            pairs = torch.cat([torch.randn(1600, 256), each], -1)
        else:
            pairs = torch.cat([x[:, None].expand(40, 40, 256), x[None].expand(40, 40, 256)], -1)
        return first(pairs).relu().mean()

    found = look(training(first, loss), "repeated rows")
    assert bool(found) != is_fixed
    if found:
        assert found[0].operator in ("aten::addmm", "aten::mm", "aten::cat")
        assert found[0].amount >= (0.5 if way == "whole" else 0.0)


def test_rows_of_their_own_side_by_side() -> None:
    layer = nn.Linear(128, 64)
    step = training(
        layer, lambda: layer(torch.cat([torch.randn(900, 64) for _ in range(2)], -1)).mean()
    )
    assert look(step, "repeated rows") == ()


def test_a_vector_beside_each_pixel() -> None:
    layer = nn.Conv1d(256 + 32, 128, 1)

    def loss() -> torch.Tensor:
        points, whole = torch.randn(4, 32, 500), torch.randn(4, 256, 1)
        return layer(torch.cat([points, whole.expand(4, 256, 500)], 1)).relu().mean()

    assert look(training(layer, loss), "repeated rows")


def waves(length: int, way: str) -> torch.Tensor:
    """Columns of waves."""
    at, number = torch.arange(length).double(), torch.arange(length // 2 + 1).double()
    if way == "cosine transform":
        return (math.pi / length * (at[:, None] + 0.5) * at).cos().float()
    turns = 2 * math.pi / length * at[:, None] * number
    window = torch.hann_window(length, dtype=torch.double)[:, None]
    return ((turns.sin() if way == "sines" else turns.cos()) * window).float()


@pytest.mark.parametrize("length", [1024, 1200])
@pytest.mark.parametrize("way", ["sines", "cosines", "cosine transform", "kernels"])
def test_a_dense_transform(length: int, way: str) -> None:
    table = waves(length, way)

    def step() -> torch.Tensor:
        if way == "kernels":
            sound = torch.randn(8, 1, 40 * length)
            return functional.conv1d(sound, table.t()[:, None].contiguous(), stride=length // 2)
        return torch.randn(600, length) @ table

    (found,) = look(step, "dense transform")
    assert found.amount < 0.6


@pytest.mark.parametrize("what", ["random", "places", "smoothing", "fft"])
def test_other_fixed_tables_are_no_transform(what: str) -> None:
    at = torch.arange(512.0)
    table = {
        "random": torch.randn(512, 256),
        "places": (at[:, None] / 10_000 ** (torch.arange(256) / 256)).sin(),
        "smoothing": (-((at[:, None] - at) ** 2) / 50).exp(),
        "fft": torch.zeros(0),
    }[what]

    def step() -> torch.Tensor:
        x = torch.randn(600, 512)
        return torch.fft.rfft(x).real if what == "fft" else x @ table

    assert look(step, "dense transform") == ()


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


def test_the_backward_pass_of_what_is_computed_twice() -> None:
    layer = nn.Linear(256, 256)

    def loss() -> torch.Tensor:
        x = torch.randn(512, 256)
        return layer(x).square().mean() + layer(x).abs().mean()

    found = look(training(layer, loss), "same twice")
    assert found[0].calls >= 2  # the product, and its gradient


def test_gradients_through_a_sum_are_followed() -> None:
    body, around, head = nn.Linear(400, 600), nn.Linear(400, 600), nn.Linear(600, 4)

    def loss() -> torch.Tensor:
        x = torch.randn(400, 400)
        return head(body(x) + around(x)).square().mean()

    found = look(training(head, loss), "dropped gradients")
    # The gradients of both layers, and the one that only leads to them: all but the head's.
    assert sum(each.share for each in found) > 0.2


@pytest.mark.parametrize("way", ["pow", "times itself", "norm", "expanded"])
def test_distances_from_differences(way: str) -> None:
    layer = nn.Linear(32, 32)
    centers = torch.randn(200, 32)

    def loss() -> torch.Tensor:
        x = layer(torch.randn(300, 32))
        if way == "expanded":
            apart = x[:, None].expand(300, 200, 32) - centers[None].expand(300, 200, 32)
        else:
            apart = x[:, None] - centers
        if way == "norm":
            return apart.norm(dim=-1).min(1).values.mean()
        squares = apart * apart if way == "times itself" else apart.pow(2)
        return squares.sum(-1).min(1).values.mean()

    found = look(training(layer, loss), "pairwise differences")
    assert found
    assert found[0].amount < 0.6


@pytest.mark.parametrize("way", ["product", "cdist", "vectors", "cubes", "rows"])
def test_what_is_no_distance_from_differences(way: str) -> None:
    layer = nn.Linear(32, 32)
    centers = torch.randn(200, 32)

    def loss() -> torch.Tensor:
        x = layer(torch.randn(200, 32))
        if way == "product":
            return (x.square().sum(-1)[:, None] - 2 * x @ centers.T).min(1).values.mean()
        if way == "cdist":
            return torch.cdist(x, centers).min(1).values.mean()
        apart = x - centers if way == "rows" else x[:, None] - centers
        if way == "vectors":
            return (apart.pow(2).sum(-1, keepdim=True) * apart).mean()
        return apart.pow(3 if way == "cubes" else 2).sum(-1).mean()

    assert look(training(layer, loss), "pairwise differences") == ()


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


@pytest.mark.parametrize("way", ["layers", "encoder", "repeated", "images"])
@pytest.mark.parametrize("is_fixed", [False, True])
def test_the_same_for_each_of_a_batch(way: str, is_fixed: bool) -> None:
    table = nn.Embedding(500, 32)
    places = nn.Parameter(torch.randn(20, 32))
    one = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    encoder = nn.TransformerEncoder(one, 1, enable_nested_tensor=False).eval()
    images, layers = nn.Conv2d(3, 8, 3), nn.Sequential(nn.Linear(32, 64), nn.ReLU())
    joined = nn.Linear(64 if way == "layers" else 40, 1)

    def step() -> torch.Tensor:
        count = 1 if is_fixed else 64
        history = torch.randint(0, 500, (20,))
        others = torch.randn(64, 8)
        with torch.inference_mode(way == "encoder"):
            if way == "images":
                return images(torch.randn(1, 3, 16, 16).expand(count, -1, -1, -1)).mean()
            x = table(history).expand(count, -1, -1) + places
            if way == "repeated":  # each of them in a row
                return layers(table(history).repeat_interleave(count, 0)).mean()
            if way == "layers":
                return joined(layers(x)).mean()
            user = encoder(x).mean(1).expand(64, -1)
            return joined(torch.cat([user, others], 1)).mean()

    found = look(step, "copied items")
    assert bool(found) is not is_fixed
    if found:
        assert found[0].amount == pytest.approx(1 / 64)


@pytest.mark.parametrize("why", ["different", "zeros", "ones", "once", "last"])
def test_other_batches_are_no_copies(why: str) -> None:
    layer = nn.Sequential(nn.Linear(128, 96), nn.Linear(96, 64))
    seen = [0]

    def step() -> torch.Tensor:
        seen[0] += 1
        x = torch.randn(64, 128)
        if why in ("zeros", "ones"):
            x = torch.full((64, 128), float(why == "ones"))
        if why == "once" and seen[0] == 3:
            x = x[:1].expand(64, -1)
        if why == "last":
            x = torch.cat([x[:32], x[:31], x[:1]])
        return layer(x)

    assert look(step, "copied items") == ()
