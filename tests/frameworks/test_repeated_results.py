"""What small PyTorch programs compute again, and what only looks so."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.support.examined_steps import Step, look, training  # noqa: E402

ALWAYS = "same in every step"


def operators(step: Step, kind: str = ALWAYS, steps: int = 4) -> set[str]:
    return {each.operator for each in look(step, kind, steps)}  # type: ignore[arg-type]


class Positions(nn.Module):
    """Adds waves to a sequence, made of a buffer in each step, or once."""

    def __init__(self, is_fixed: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        rates = torch.exp(torch.arange(0, 64, 2) * (-math.log(1e4) / 64))
        self.register_buffer("rates", rates)
        self.register_buffer("waves", self.made() if is_fixed else None)

    def made(self) -> torch.Tensor:
        at = torch.arange(2048)[:, None] * self.rates
        return torch.cat([at.sin(), at.cos()], 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x + (self.made() if self.waves is None else self.waves))


@pytest.mark.parametrize("is_fixed", [False, True])
def test_positions_from_a_buffer(is_fixed: bool) -> None:
    model = Positions(is_fixed)
    step = training(model, lambda: model(torch.randn(2048, 64)).square().mean())
    assert bool(operators(step)) is not is_fixed


@pytest.mark.parametrize("kind", [ALWAYS, "same twice"])
@pytest.mark.parametrize("is_written", [False, True])
def test_a_copy_to_write_to(is_written: bool, kind: str) -> None:
    layer, grid = nn.Linear(64, 64), torch.randn(256, 64)

    def loss() -> torch.Tensor:
        # What is the same in every step is not told again as the same twice.
        copied = grid if kind == ALWAYS else grid + torch.randn(64)
        copies = [copied.clone() for _ in range(1 if kind == ALWAYS else 2)]
        for copy in copies:
            if is_written:
                copy[torch.randint(0, 256, (9,))] = 2.0
        return sum(layer(copy + torch.randn(256, 64)).square().mean() for copy in copies)

    assert ("aten::clone" in operators(training(layer, loss), kind)) is not is_written


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_mask_of_constants(is_fixed: bool) -> None:
    layer = nn.Linear(32, 32)
    kept = torch.ones(512, 512).tril().log()

    def loss() -> torch.Tensor:
        x = torch.randn(512, 32)
        mask = kept if is_fixed else torch.ones(512, 512).tril().log()
        return ((x @ layer(x).t()) + mask).softmax(-1).square().mean()

    assert bool(operators(training(layer, loss))) is not is_fixed


@pytest.mark.parametrize("has_requests", [False, True])
def test_numbers_that_come_with_requests_are_input(has_requests: bool) -> None:
    layer, other = Packed(400, 400), nn.Linear(64, 64)

    def step() -> None:
        with torch.no_grad():
            other(torch.randn(8, 64))
            layer(torch.full((400, 400), 3.0))

    found = {each.operator for each in look(step, ALWAYS, has_requests=has_requests)}
    assert ("aten::mm" in found) is not has_requests
    assert found  # no request brings the weight


@pytest.mark.parametrize("what", ["constants", "inputs", "the same input"])
def test_features_of_frozen_parameters(what: str) -> None:
    body, head = nn.Linear(256, 256).requires_grad_(False), nn.Linear(256, 4)
    batch = torch.randn(256, 256)

    def loss() -> torch.Tensor:
        x = torch.eye(256) if what == "constants" else batch
        x = torch.randn(256, 256) if what == "inputs" else x
        return head(body(x)).square().mean()

    assert ("aten::addmm" in operators(training(head, loss))) is (what != "inputs")


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_low_rank_change_of_a_frozen_layer(is_fixed: bool) -> None:
    base = nn.Linear(512, 512, bias=False).requires_grad_(False)
    change = nn.Sequential(nn.Linear(512, 8, bias=False), nn.Linear(8, 512, bias=False))
    batch = torch.randn(256, 512)
    kept = base(batch)
    step = training(change, lambda: ((kept if is_fixed else base(batch)) + change(batch)).mean())
    found = look(step, ALWAYS)
    assert bool(found) is not is_fixed
    if found:
        # 67 M multiplications at 0.05 ns and 0.52 M elements at 0.5 ns are 3.6 ms. Five products
        # with 8 columns are 0.6 ms, and the sum, the mean and their gradients 0.4 ms.
        assert found[0].shapes == "(256, 512) × (512, 512)"
        assert found[0].share == pytest.approx(3.6 / 4.6, rel=0.05)


@pytest.mark.parametrize("what", ["changing", "measured"])
def test_an_image_that_stays_while_a_sequence_grows(what: str) -> None:
    encoder, layer, image = nn.Linear(256, 256), nn.Linear(256, 256), torch.randn(256, 256)
    state = [torch.randn(256, 256)]

    @torch.no_grad()
    def step() -> None:
        sequence = layer(encoder(image).relu_() + state[0])
        state[0] = sequence if what == "changing" else state[0]

    # A program of which nothing changes is only measured.
    assert bool(operators(step)) is (what == "changing")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("way", ["causal", "both ways", "cache", "window", "training"])
def test_a_sequence_that_grows(way: str, batch: int) -> None:
    project, out = nn.Linear(64, 192), nn.Linear(64, 64)
    tokens = [torch.randn(batch, 31, 64)]
    cache: list[torch.Tensor] = []

    def attention(x: torch.Tensor) -> torch.Tensor:
        query, key, value = project(x).chunk(3, -1)
        if way == "cache":
            key, value = (
                torch.cat([*cache[i : i + 1], new], 1) for i, new in enumerate((key, value))
            )
            cache[:] = key, value
        is_causal = way in ("causal", "training")
        query, key, value = (each[:, None] for each in (query, key, value))
        return out(functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal))

    @torch.set_grad_enabled(way == "training")
    def step() -> None:
        x = tokens[0][:, -32:] if way == "window" else tokens[0]
        y = attention(x[:, -1:] if cache else x)[:, 0, -1:]
        tokens[0] = torch.cat([tokens[0], y.detach()], 1)

    # What attends both ways is another row in each step, and so is what follows from it.
    products = [each.calls for each in look(step, "same rows") if each.operator == "aten::addmm"]
    # With `out`, attention is at one line.
    assert sum(products) == {"causal": 3, "both ways": 1}.get(way, 0)


def test_rows_that_are_added_are_no_part_of_what_is_saved() -> None:
    layer, rows = nn.Linear(512, 512), [torch.randn(8, 512)]

    @torch.no_grad()
    def step() -> None:
        layer(rows[0])
        rows[0] = torch.cat([rows[0], torch.ones(1, 512)])

    (found,) = look(step, "same rows", steps=2)
    # The second product of ten rows, after the warm-up: 2.6 M multiplications at 0.05 ns, and
    # 0.27 M elements at 0.5 ns, without the call are 268 us, of which nine rows take nine tenths.
    # In all, there are 271 us for it, 4 us and 5 us more for the rows, and a view.
    assert found.share == pytest.approx(0.9 * 268 / (271 + 4 + 5 + 3 + 3), rel=0.03)


class Packed(nn.Linear):
    """Its weight is unpacked in each call."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight * 0.5 + 1.0).t() + self.bias


@pytest.mark.parametrize("way", ["inference", "training", "accumulation", "frozen"])
def test_a_weight_that_is_unpacked_in_each_call(way: str) -> None:
    layer, head, x = Packed(400, 400), nn.Linear(400, 1), torch.randn(4, 400)
    if way == "inference":  # the input never changes, and yet is one

        def step() -> None:
            with torch.no_grad():
                head(layer(x))

    elif way == "frozen":
        layer.requires_grad_(False)
        step = training(head, lambda: head(layer(x)).mean())
    else:
        both, parts = nn.ModuleList((layer, head)), 4 if way == "accumulation" else 1
        optimizer = torch.optim.SGD(both.parameters(), 0.01)

        def step() -> None:
            for _ in range(parts):
                head(layer(torch.randn(4, 400))).mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    # Between updates it is the same, after the next one it is not.
    assert bool(operators(step)) is (way in ("inference", "frozen"))
    assert ("aten::mul" in operators(step, "same twice")) is (way == "accumulation")


def test_parameters_change_also_if_no_update_is_seen() -> None:
    layer = Packed(400, 400)

    def step() -> None:  # steps that end with gradients; the update comes after many of them
        layer(torch.randn(4, 400)).mean().backward()

    assert operators(step) == set()


@pytest.mark.parametrize("way", ["buffer", "kernel", "random", "numbers", "NumPy", "observed"])
def test_what_changes_is_not_the_same(way: str) -> None:
    layer = nn.Linear(300, 300)
    layer.register_buffer("state", torch.ones(300, 300))
    outside = torch.ones(300, 300).numpy()
    observed = torch.from_numpy(outside)
    count = [0]

    def step() -> None:
        count[0] += 1
        x = torch.randn(300, 300)
        with torch.no_grad():
            made = layer.state
            if way == "buffer":
                layer.state.add_(1)
            elif way == "kernel":  # which writes to memory without an operator
                made = torch.zeros(300, 300)
                made.numpy()[:] = count[0]
            elif way == "random":
                made = torch.rand(300, 300)
            elif way == "numbers":
                made = made * count[0]
            else:
                outside[:] = count[0]
                made = observed if way == "observed" else torch.from_numpy(outside)
                (made > 0).sum()  # always the same number
            layer(x + made.exp().log())

    changing = {"aten::exp", "aten::log", "aten::mul", "aten::gt", "aten::sum"}
    assert operators(step).isdisjoint(changing)


def test_a_program_without_input_is_only_measured() -> None:
    layer = nn.Linear(300, 300)

    def step() -> None:
        with torch.no_grad():
            layer(torch.ones(300, 300))

    assert operators(step) == set()
    assert operators(lambda: [step() for _ in range(3)], "same twice") == set()


@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_second_forward_pass_for_a_metric(is_fixed: bool) -> None:
    layer = nn.Linear(128, 128)

    def loss() -> torch.Tensor:
        x = torch.randn(256, 128)
        y = layer(x)
        (y if is_fixed else layer(x)).argmax(1)
        return y.square().mean()

    found = operators(training(layer, loss), "same twice")
    assert ("aten::addmm" in found) is not is_fixed


def test_the_backward_pass_of_what_is_computed_twice() -> None:
    layer = nn.Linear(256, 256)

    def loss() -> torch.Tensor:
        x = torch.randn(512, 256)
        return layer(x).square().mean() + layer(x).abs().mean()

    found = look(training(layer, loss), "same twice")
    assert found[0].calls >= 2  # the product, and its gradient


@pytest.mark.parametrize("ends_between", [False, True])
def test_images_that_are_made_for_both_players(ends_between: bool) -> None:
    maker = nn.Sequential(nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(True))
    critic, noise = nn.Linear(256, 1), torch.randn(512, 64)
    players = [torch.optim.SGD(each.parameters(), 0.01) for each in (critic, maker)]

    def turn(number: int) -> None:
        made = maker(noise.normal_() if number == 0 else noise)
        players[number].zero_grad()
        critic(made if number else made.detach()).mean().backward()
        players[number].step()

    # The backward pass goes through the second images alone, and would through the first ones.
    numbers = (1, 0) if ends_between else (0, 1)
    (found,) = look(lambda: [turn(number) for number in numbers], "same twice", steps=5)
    assert (found.operator, found.function) == ("aten::addmm", "turn")
    assert found.calls == 2  # a product and what normalizes it; the rest is in place


@pytest.mark.parametrize("what", ["dropout", "equal batches", "state", "checkpoints", "columns"])
def test_what_is_not_computed_twice(what: str) -> None:
    layer, drop = nn.Linear(128, 128), nn.Dropout(0.5)

    def loss() -> torch.Tensor:
        x = torch.randn(256, 128)
        if what == "dropout":
            return layer(drop(x)).mean() + layer(drop(x)).mean()
        if what == "equal batches":  # by chance, or to try the program
            other = torch.tensor(x.tolist())
            return layer(x).mean() + layer(other).mean()
        if what == "state":
            with torch.no_grad():
                layer(x)
            x.add_(1)
            return layer(x).mean()
        if what == "columns":
            index = torch.arange(128)
            square = x[:128]
            return layer(square[index]).mean() + layer(square[:, index]).mean()
        return checkpoint(layer, x, use_reentrant=False).square().mean()

    assert "aten::addmm" not in operators(training(layer, loss), "same twice")
