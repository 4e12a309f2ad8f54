"""What is found in the tensors of small PyTorch programs, and that looking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.utils.parametrizations import spectral_norm  # noqa: E402
from torch.utils._python_dispatch import _get_current_dispatch_mode  # noqa: E402

from tb_perfadvisor.instrument.examination import findings, watching  # noqa: E402
from tb_perfadvisor.instrument.examination.examiner import Examiner  # noqa: E402
from tb_perfadvisor.instrument.examination.watching import Watching  # noqa: E402
from tb_perfadvisor.machine.facts import Examined, FailedLook  # noqa: E402
from tests.support.examined_steps import Step, look, training  # noqa: E402

OF_LOSS = ("aten::addmm", "aten::pow", "aten::mean")
"""The squares of what a layer returns: which of them takes longest depends on the machine."""


@pytest.fixture(autouse=True, params=["cpu", "cuda"])
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test runs on the CPU and, where there is one, on a GPU."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    torch.set_default_device(request.param)
    yield
    torch.set_default_device(None)


def test_losses_are_the_same() -> None:
    def losses(is_watched: bool) -> list[float]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.ReLU())
        rnn = nn.LSTM(16, 4, batch_first=True)
        both = nn.ModuleList((model, rnn))
        x = torch.randn(32, 8)
        step = training(both, lambda: rnn(model(x)[:, None])[0].square().mean())
        if not is_watched:
            return [step() for _ in range(4)]  # type: ignore[misc]
        with Watching():
            return [step() for _ in range(4)]  # type: ignore[misc]

    assert losses(is_watched=True) == losses(is_watched=False)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@pytest.mark.parametrize("is_fixed", [False, True])
def test_a_matrix_of_zeros(is_fixed: bool) -> None:
    adjacency = torch.eye(400)
    layer = nn.Linear(32, 32)
    x = torch.randn(400, 32)
    stored = adjacency.to_sparse_csr() if is_fixed else adjacency
    found = look(training(layer, lambda: (stored @ layer(x)).square().mean()), "mostly zero")
    if is_fixed:
        assert found == ()
    else:
        assert found[0].amount == pytest.approx(1 - 1 / 400, abs=0.003)
        assert found[0].path == "test_examination.py" or found[0].path.endswith("examination.py")


def test_activations_with_zeros_are_no_data() -> None:
    layer = nn.Linear(256, 256)
    with torch.no_grad():
        layer.bias.fill_(-100)
    x = torch.randn(256, 256)

    def step() -> None:
        with torch.no_grad():
            layer(functional.relu(layer(x)))

    assert look(step, "mostly zero") == ()


@pytest.mark.parametrize(("tokens", "share"), [(20, 0.5), (40, None), (0, None)])
def test_padding(tokens: int, share: float | None) -> None:
    table, layer = nn.Embedding(100, 32), nn.Linear(32, 64)
    ids = torch.randint(1, 100, (16, 40))
    ids[:, tokens:] = 0
    both = nn.ModuleList((table, layer))
    found = look(training(both, lambda: layer(table(ids)).square().mean()), "padding")
    if share is None:  # there is none, or all is one token
        assert found == ()
    else:
        assert found[0].amount == pytest.approx(share)
        assert found[0].share > 0.5


class Reader(nn.Module):  # type: ignore[misc,unused-ignore]
    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(100, 32), nn.Linear(32, 64)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.layer(self.table(ids))


@pytest.mark.parametrize(("made_in_step", "function"), [(True, "collate"), (False, "loss")])
def test_padding_is_named_where_it_comes_from(made_in_step: bool, function: str) -> None:
    model = Reader()
    rows = [torch.randint(1, 100, (40 - 2 * number,)) for number in range(16)]

    def collate() -> torch.Tensor:
        return nn.utils.rnn.pad_sequence(rows, batch_first=True)

    before = collate()

    def loss() -> torch.Tensor:
        return model(collate() if made_in_step else before).square().mean()

    (found,) = look(training(model, loss), "padding")
    assert found.function.rpartition(".")[2] == function
    assert found.amount == pytest.approx(15 / 40)  # 0, 2, 4 up to 30 of 40


@pytest.mark.parametrize("is_fixed", [False, True])
def test_independent_calls(is_fixed: bool) -> None:
    layer = nn.Linear(16, 16)

    def loss() -> torch.Tensor:
        x = torch.randn(32, 16)
        y = layer(x) if is_fixed else torch.stack([layer(row) for row in x])
        return y.square().mean()

    found = look(training(layer, loss), "independent")
    assert [each.amount for each in found] == ([] if is_fixed else [32])


@pytest.mark.parametrize(("size", "same"), [(1100, True), (1100, False), (500, True)])
def test_vectors_by_the_same_large_matrix(size: int, same: bool) -> None:
    matrices = torch.randn(1 if same else 16, size, size)
    x = torch.randn(16, 1, size)

    def step() -> None:
        for number in range(16):
            x[number] @ matrices[0 if same else number]

    (found,) = look(step, "independent")
    # Of 16 rows in one product, 8 are as fast as one: 16 products would be one of twice the time.
    is_read_again = same and size * size >= 1 << 20
    products = found.reads / (1 - 2 / 16) if is_read_again else 0.0
    assert found.operator == "aten::mm"
    assert (products > 0.9) if is_read_again else (found.reads == 0)


def test_calls_that_need_each_other_are_a_chain() -> None:
    cell = nn.GRUCell(16, 16)

    def loss() -> torch.Tensor:
        state = torch.zeros(4, 16)
        for _ in range(20):
            state = cell(torch.randn(4, 16), state)
        return state.square().mean()

    found = look(training(cell, loss), "independent")
    # The products with the inputs could be one, those with the state could not.
    assert all(each.share < 0.5 for each in found)


@pytest.mark.parametrize("is_fixed", [False, True])
def test_results_of_which_a_part_is_read(is_fixed: bool) -> None:
    layer = nn.Linear(64, 500)

    def loss() -> torch.Tensor:
        x = torch.randn(8, 32, 64)
        last = layer(x[:, -1]) if is_fixed else layer(x)[:, -1]
        return last.square().mean()

    found = look(training(layer, loss), "unused")
    assert [round(1 / each.amount) for each in found] == ([] if is_fixed else [32])


@pytest.mark.parametrize("is_fixed", [False, True])
def test_gradients_of_a_generator(is_fixed: bool) -> None:
    generator, discriminator = nn.Linear(64, 128), nn.Linear(128, 1)
    first = torch.optim.SGD(discriminator.parameters(), lr=0.01)
    second = torch.optim.SGD(generator.parameters(), lr=0.01)

    def step() -> None:
        fake = generator(torch.randn(256, 64))
        first.zero_grad()
        discriminator(fake.detach() if is_fixed else fake).mean().backward(retain_graph=True)
        first.step()
        second.zero_grad()
        discriminator.requires_grad_(False)
        discriminator(fake).mean().backward()
        discriminator.requires_grad_(True)
        second.step()

    assert bool(look(step, "dropped gradients")) != is_fixed


@pytest.mark.parametrize("is_fixed", [False, True])
def test_gradients_of_a_frozen_part(is_fixed: bool) -> None:
    body, head = nn.Linear(64, 256), nn.Linear(256, 4)
    body.requires_grad_(not is_fixed)

    def loss() -> torch.Tensor:
        return head(body(torch.randn(128, 64))).square().mean()

    # The optimizer has the head alone.
    assert bool(look(training(head, loss), "dropped gradients")) != is_fixed


def test_gradients_of_a_weight_that_is_made_of_a_frozen_parameter() -> None:
    body, critic = nn.Linear(256, 256), spectral_norm(nn.Linear(256, 256))

    def loss() -> torch.Tensor:
        return critic(body(torch.randn(512, 256))).square().mean()

    # The optimizer has the body alone. The critic's product has two gradients, one of them of the
    # weight: 33 M multiplications at 0.05 ns and 0.3 M elements at 0.5 ns are 1.8 ms, of 9 ms for
    # five such products; normalizing and random numbers add a little.
    (found,) = look(training(body, loss), "dropped gradients")
    assert found.share == pytest.approx(0.2, abs=0.04)


def test_gradients_that_lie_in_memory_unlike_their_parameters_are_used() -> None:
    weight = nn.Parameter(torch.randn(64, 48).t())

    def loss() -> torch.Tensor:
        return functional.conv1d(torch.randn(8, 64, 30), weight[..., None]).square().mean()

    assert look(training(nn.ParameterList((weight,)), loss), "dropped gradients") == ()


def test_accumulated_gradients_are_used() -> None:
    layer = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        for _ in range(4):
            layer(torch.randn(64, 64)).square().mean().backward()
        optimizer.step()

    assert look(step, "dropped gradients") == ()


def test_the_loop_inside_a_recurrent_layer_is_not_the_programs() -> None:
    layer = nn.GRU(16, 16, batch_first=True)
    step = training(layer, lambda: layer(torch.randn(4, 20, 16))[0].mean())
    assert look(step, "independent") == look(step, "unused") == ()


def test_a_result_that_is_read_in_pieces_is_read() -> None:
    layer = nn.Linear(64, 96)

    def loss() -> torch.Tensor:
        first, second, third = layer(torch.randn(256, 64)).unsafe_chunk(3, 1)
        return (first.sigmoid_() * second.sigmoid_() + third).mean()

    assert look(training(layer, loss), "unused") == ()


def test_the_workspace_of_a_recurrent_layer_is_no_result() -> None:
    layer = nn.LSTM(2, 5, bidirectional=True)

    def loss() -> torch.Tensor:
        states, (last, _) = layer(torch.randn(3, 6, 2))
        return torch.bmm(states.permute(1, 0, 2), last.view(-1, 10, 1)).square().mean()

    # Nobody reads the cells' last state, which joins those of both directions.
    assert {each.operator for each in look(training(layer, loss), "unused")} <= {"aten::stack"}


def test_single_numbers_with_any_strides_are_looked_at() -> None:
    layer = nn.Linear(4, 2)
    chances = torch.distributions.Categorical

    def loss() -> torch.Tensor:
        chosen = [chances(logits=layer(torch.randn(4))) for _ in range(6)]
        return -torch.stack([each.log_prob(each.sample()) for each in chosen]).sum()

    assert look(training(layer, loss), "independent")


@pytest.mark.parametrize("is_attack", [False, True])
def test_calls_that_need_each_others_gradients_are_a_chain(is_attack: bool) -> None:
    layer = nn.Linear(32, 32)

    def step() -> None:
        x = torch.randn(16, 32)
        for _ in range(8):
            x = x.detach().requires_grad_()
            layer(x).square().mean().backward()
            assert x.grad is not None
            x = x + 0.1 * x.grad.sign() if is_attack else torch.randn(16, 32)

    assert any(each.operator in OF_LOSS for each in look(step, "independent")) != is_attack


@pytest.mark.parametrize("fused", [False, True])
def test_calls_with_an_update_between_them_are_a_chain(fused: bool) -> None:
    layer = nn.Linear(32, 32)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, foreach=not fused, fused=fused)

    def step() -> None:
        for _ in range(8):
            optimizer.zero_grad()
            layer(torch.randn(16, 32)).square().mean().backward()
            optimizer.step()

    assert not any(each.operator in OF_LOSS for each in look(step, "independent"))


def test_looks_go_on_after_inference_mode() -> None:
    layer, head = nn.Linear(16, 16), nn.Linear(16, 4)
    examiner, before = Examiner(), torch.inference_mode.__exit__

    @torch.inference_mode()
    def answer() -> torch.Tensor:
        made = layer(torch.randn(8, 16))
        if examiner.is_running:
            examiner.step()
        elif examiner.found is None:
            examiner.begin(4)  # as when the call of a model ends a step
        return head(made).topk(2).values

    for _ in range(6):
        answer()
    assert torch.ones(2).sum() == 2  # nothing is looked at any more
    assert examiner.found is not None
    assert examiner.found.steps == 4
    assert examiner.found.calls >= 3  # both products and the selection
    assert torch.inference_mode.__exit__ is before


def test_a_look_in_inference_mode_leaves_nothing_there() -> None:
    layer, examiner = nn.Linear(16, 16), Examiner()
    before = torch.inference_mode.__enter__, torch.inference_mode.__exit__
    with torch.inference_mode():
        examined_by(examiner, lambda: layer(torch.randn(8, 16)))
        assert _get_current_dispatch_mode() is None
        with torch.inference_mode():
            assert torch.ones(2).sum() == 2
    assert torch.ones(2).sum() == 2
    assert (torch.inference_mode.__enter__, torch.inference_mode.__exit__) == before


def test_a_look_that_began_outside_of_inference_mode_ends_within() -> None:
    layer, examiner = nn.Linear(16, 16), Examiner()
    before = torch.inference_mode.__exit__
    examiner.begin(4)
    for _ in range(4):
        with torch.inference_mode():
            layer(torch.randn(8, 16))
            examiner.step()
    assert torch.ones(2).sum() == 2
    assert examiner.found is not None
    assert torch.inference_mode.__exit__ is before


def examined_by(examiner: Examiner, step: Step) -> Examined:
    """What is found in four steps, as a recorder calls it."""
    step()
    examiner.begin(4)
    while examiner.is_running:
        step()
        examiner.step()
    assert examiner.found is not None
    return examiner.found


def test_each_loop_gets_a_look_of_its_own() -> None:
    layer, head = nn.Linear(64, 500), nn.Linear(500, 4)
    examiner = Examiner()

    calibrating = training(layer, lambda: layer(torch.randn(8, 32, 64))[:, -1].square().mean())
    training_step = training(head, lambda: head(layer(torch.randn(64, 64))).square().mean())
    first = examined_by(examiner, calibrating)
    assert first.all_of("unused")
    assert not first.all_of("dropped gradients")
    second = examined_by(examiner, training_step)
    assert not second.all_of("unused")
    assert second.all_of("dropped gradients")
    # In a loop that was looked at before, a step is enough to know it.
    calibrating()
    examiner.begin(4)
    calibrating()
    assert examiner.step()
    assert examiner.found is first


def sixteen_bits(way: str) -> Step:
    """Logits of all places, of which the last is read, and padding; in bfloat16."""
    table, head = nn.Embedding(100, 64), nn.Linear(64, 500)
    model = nn.ModuleList((table, head))
    if way == "plain":
        model.to(torch.bfloat16)
    features = torch.randn(64, 64).to(torch.bfloat16)

    def loss() -> torch.Tensor:
        ids = torch.randint(1, 100, (64, 32))
        ids[:, 16:] = 0
        where = torch.get_default_device().type
        with torch.autocast(where, torch.bfloat16, enabled=way == "autocast"):
            logits = head(table(ids) + features[:, None].to(table.weight.dtype))[:, -1]
            # A product of inputs alone: what has no gradient is looked at more closely.
            mixed = features @ features.t()
        return logits.float().square().mean() + mixed.float().mean()

    return training(model, loss)


@pytest.mark.parametrize("way", ["plain", "autocast"])
def test_programs_in_sixteen_bits_are_looked_at(way: str) -> None:
    found = examined_by(Examiner(), sixteen_bits(way))
    assert found.failed == ()
    assert found.steps == 4
    assert {"unused", "padding"} <= {each.kind for each in found.observed}
    (unread,) = [each for each in found.all_of("unused") if "(64, 500)" in each.shapes]
    assert unread.amount == pytest.approx(1 / 32)


def broken(*_: object, **__: object) -> None:
    raise TypeError("Got unsupported ScalarType BFloat16")


WHY = "TypeError: Got unsupported ScalarType BFloat16"


@pytest.mark.parametrize(
    ("module", "name", "look"),
    [
        (watching, "_tokens", "padding"),  # while the program runs
        (watching, "checksum", "repeated results"),
        (findings, "independent", "independent calls"),  # afterwards
    ],
)
def test_a_look_that_fails_ends_no_other(
    module: object, name: str, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, name, broken)
    found = examined_by(Examiner(), sixteen_bits("plain"))
    assert found.failed == (FailedLook(look, WHY),)
    assert found.all_of("unused")


def test_operators_that_cannot_be_seen_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def losses() -> list[float]:
        torch.manual_seed(0)
        layer = nn.Linear(8, 8)
        step = training(layer, lambda: layer(torch.randn(4, 8)).square().mean())
        examiner.begin(4)
        return [step() for _ in range(4)]  # type: ignore[misc]

    examiner = Examiner()
    monkeypatch.setattr(watching, "_operator", broken)
    seen = losses()
    examiner.end()
    assert examiner.found == Examined(failed=(FailedLook("operators", WHY),))
    assert losses() == seen
