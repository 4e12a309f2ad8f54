"""Model FLOP of recorded training steps beside `torch.utils.flop_counter` on meta tensors.

On meta tensors, attention is two products forward and four backward, so the counter's number is
what the model needs. On real tensors it is fused, as on a GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tb_perfadvisor import analyze
from tb_perfadvisor.contract.model import Overview
from tb_perfadvisor.signals.work.operator_work import work_of_operator
from tests.support.recording import run

MODELS = """
import json, sys, torch
from pathlib import Path
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

class Block(nn.Module):
    def __init__(self, width=32, heads=4, key_heads=4, causal=True, gated=False):
        super().__init__()
        self.heads, self.key_heads, self.causal, self.gated = heads, key_heads, causal, gated
        self.size = width // heads
        self.q = nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, self.size * key_heads, bias=False) for _ in range(2))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 3 * width), nn.Linear(3 * width, width)
        self.gate = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width)
    def split(self, x, heads):
        return x.view(*x.shape[:2], heads, self.size).transpose(1, 2)
    def forward(self, x):
        y = self.norm(x)
        q = self.split(self.q(y), self.heads)
        k, v = (self.split(layer(y), self.key_heads) for layer in (self.k, self.v))
        grouped = self.heads != self.key_heads
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=grouped)
        x = x + self.out(y.transpose(1, 2).reshape(x.shape))
        y = self.up(x)
        return x + self.down(F.silu(self.gate(x)) * y if self.gated else F.gelu(y))

class Decoder(nn.Module):
    def __init__(self, recompute=None, **options):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(101, 32), nn.Embedding(16, 32)
        self.blocks = nn.ModuleList(Block(**options) for _ in range(2))
        self.head, self.recompute = nn.Linear(32, 101, bias=False), recompute
    def forward(self, tokens):
        x = self.embedding(tokens) + self.positions(torch.arange(16, device=tokens.device))
        for block in self.blocks:
            x = block(x) if self.recompute is None else checkpoint(
                block, x, use_reentrant=self.recompute)
        return self.head(x)

class EncoderDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(101, 32)
        self.encoder = nn.ModuleList(Block(causal=False) for _ in range(2))
        self.cross = nn.MultiheadAttention(32, 4, batch_first=True)
        self.decoder = Block()
    def forward(self, tokens):
        x = self.embedding(tokens)
        for block in self.encoder:
            x = block(x)
        y = self.decoder(self.embedding(tokens[:, :8]))
        return self.cross(y, x, x, need_weights=False)[0]

class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.blocks = nn.Sequential(Block(causal=False), Block(causal=False))
        self.head = nn.Linear(32, 10)
    def forward(self, images):
        return self.head(self.blocks(self.patches(images).flatten(2).transpose(1, 2)).mean(1))

class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, stride=2, padding=3, bias=False)
        self.a, self.b = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.short, self.norm = nn.Conv2d(8, 16, 1, stride=2), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)
    def forward(self, images):
        x = F.relu(self.stem(images))
        return self.head((self.norm(self.b(F.relu(self.a(x)))) + self.short(x)).mean((2, 3)))

class ConvNext(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 4, stride=4)
        self.deep = nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)
    def forward(self, images):
        x = self.deep(self.stem(images)).permute(0, 2, 3, 1)
        return self.down(F.gelu(self.up(x)))

class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.middle = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
        self.up = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1)
        self.out = nn.Conv2d(8, 3, 1)
    def forward(self, images):
        return self.out(self.up(self.middle(self.down(images))))

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.tokens, self.channels = nn.Linear(16, 16), nn.Linear(32, 32)
    def forward(self, images):
        x = self.patches(images).flatten(2)
        return self.channels(self.tokens(x).transpose(1, 2))

class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.router = nn.Embedding(101, 32), nn.Linear(32, 4)
        self.up, self.down = (nn.Parameter(torch.randn(4, *s) / 8) for s in ((32, 64), (64, 32)))
    def forward(self, tokens):
        x = self.embedding(tokens).flatten(0, 1)
        weights = self.router(x).softmax(-1)
        y = torch.bmm(torch.relu(torch.bmm(x.expand(4, *x.shape), self.up)), self.down)
        return torch.einsum("te,etd->td", weights, y)

class Einsum(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.qkv = nn.Embedding(101, 32), nn.Linear(32, 96)
    def forward(self, tokens):
        q, k, v = self.qkv(self.embedding(tokens)).chunk(3, -1)
        scores = torch.einsum("bqd,bkd->bqk", q, k).softmax(-1)
        return torch.matmul(scores, v)

class Bert(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.types = nn.Embedding(101, 32), nn.Embedding(2, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    def forward(self, tokens):
        return self.encoder(self.embedding(tokens) + self.types(tokens * 0))

class Speech(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.block = nn.Conv1d(8, 32, 3, stride=2, padding=1), Block(causal=False)
    def forward(self, frames):
        return self.block(self.features(frames).transpose(1, 2))

class Video(nn.Module):
    def __init__(self):
        super().__init__()
        self.tubes, self.deep = nn.Conv3d(3, 8, 4, stride=4), nn.Conv3d(8, 8, 3, padding=1)
    def forward(self, frames):
        return self.deep(F.relu(self.tubes(frames)))

class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.head = nn.Embedding(101, 32), nn.Linear(32, 101)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0])

TOKENS, IMAGES = ("tokens", (4, 16)), ("floats", (4, 3, 16, 16))
FAMILIES = {
    "gpt": (Decoder, TOKENS),
    "llama-grouped-queries": (lambda: Decoder(key_heads=2, gated=True), TOKENS),
    "bert": (Bert, TOKENS),
    "encoder-decoder": (EncoderDecoder, TOKENS),
    "vit": (ViT, IMAGES),
    "resnet": (Residual, IMAGES),
    "convnext-depthwise": (ConvNext, IMAGES),
    "unet-transposed": (UNet, IMAGES),
    "mlp-mixer": (Mixer, IMAGES),
    "mixture-of-experts": (Experts, TOKENS),
    "attention-by-einsum": (Einsum, TOKENS),
    "speech-conv1d": (Speech, ("floats", (4, 8, 32))),
    "video-conv3d": (Video, ("floats", (2, 3, 8, 16, 16))),
    "checkpointed-gpt": (lambda: Decoder(recompute=False), TOKENS),
    "reentrant-checkpointed-gpt": (lambda: Decoder(recompute=True), TOKENS),
    "lstm": (Recurrent, TOKENS),
}

def made(kind, shape, device):
    if kind == "tokens":
        return torch.zeros(shape, dtype=torch.long, device=device)
    return torch.randn(shape, device=device)

out, counted = Path(sys.argv[1]), {}
for name, (family, (kind, shape)) in FAMILIES.items():
    model = family()
    if name != "lstm":
        with FlopCounterMode(display=False) as counter:
            model.to("meta")(made(kind, shape, "meta")).sum().backward()
        counted[name] = counter.get_total_flops()
    model, batch = family(), made(kind, shape, "cpu")
    once = schedule(wait=0, warmup=1, active=3, repeat=1)
    (out / name).mkdir()
    def save(done, file=out / name / "worker0.pt.trace.json"):
        done.export_chrome_trace(str(file))
    with profile(activities=[ProfilerActivity.CPU], schedule=once, record_shapes=True,
                 on_trace_ready=save) as profiler:
        for _ in range(4):
            model(batch).sum().backward()
            profiler.step()
(out / "counted.json").write_text(json.dumps(counted))
"""


FAMILIES = (
    "gpt", "llama-grouped-queries", "bert", "encoder-decoder", "vit", "resnet", "unet-transposed",
    "mlp-mixer", "mixture-of-experts", "attention-by-einsum", "speech-conv1d", "video-conv3d",
)  # fmt: skip
FORMULAS = """
import json, sys
from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count
counts = []
for query, key, value in json.loads(sys.argv[1]):
    counts.append([
        sdpa_flop_count(query, key, value),
        sdpa_backward_flop_count([*query[:3], value[3]], query, key, value),
    ])
print(json.dumps(counts))
"""


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("families")
    run(MODELS, "torch", folder, str(folder))
    return folder


def overview(families: Path, family: str) -> Overview:
    return analyze(families / family).overview


def counted(families: Path, family: str) -> int:
    return int(json.loads((families / "counted.json").read_text())[family])


@pytest.mark.parametrize("family", FAMILIES)
def test_model_flop_are_those_of_the_counter(families: Path, family: str) -> None:
    assert overview(families, family).flop.model_per_step == counted(families, family)


def test_a_depthwise_convolution_counts_its_groups_backward_too(families: Path) -> None:
    # The counter takes the gradient of 16 groups' weights for that of a full convolution. Each of
    # 4 x 16 x 4 x 4 outputs takes 49 multiplications and additions.
    surplus = (16 - 1) * 2 * (4 * 16 * 4 * 4) * 49
    found = overview(families, "convnext-depthwise")
    assert found.flop.model_per_step == counted(families, "convnext-depthwise") - surplus


@pytest.mark.parametrize("family", ["checkpointed-gpt", "reentrant-checkpointed-gpt"])
def test_checkpoints_leave_model_flop_as_they_are(families: Path, family: str) -> None:
    assert counted(families, family) > counted(families, "gpt")
    assert overview(families, family).flop.model_per_step == counted(families, "gpt")


def test_executed_flop_have_recomputation_and_half_of_causal_attention(families: Path) -> None:
    plain, again = (counted(families, name) for name in ("gpt", "reentrant-checkpointed-gpt"))
    # Two layers, two products for 16 x 16 pairs of positions, 4 sequences, 32 dimensions.
    attention = 2 * 2 * 2 * 16 * 16 * 4 * 32
    # Forward and backward 6 products, of which fused kernels execute 2 / 2 + 5 / 2.
    expected = plain - 3 * attention + (0.5 + 0.5 * 2.5) * attention
    assert overview(families, "gpt").flop.executed_per_step == expected
    recomputed = again - plain - 0.5 * attention
    found = overview(families, "reentrant-checkpointed-gpt")
    assert found.flop.executed_per_step == expected + recomputed


def test_tokens_and_images_of_a_step(families: Path) -> None:
    gpt, vit = overview(families, "gpt"), overview(families, "vit")
    assert (gpt.tokens_per_step, gpt.samples_per_step) == (4 * 16, 4)
    assert (vit.tokens_per_step, vit.samples_per_step) == (None, 4)


def test_layers_without_a_formula_leave_flop_unknown(families: Path) -> None:
    found = overview(families, "lstm").flop
    assert (found.model_per_step, found.executed_per_step) == (None, None)
    assert found.unknown_because.startswith("FLOP are known for only ")


def test_fused_attention_by_the_counters_own_formulas(tmp_path: Path) -> None:
    shapes = [
        [[2, 8, 1024, 64], [2, 8, 1024, 64], [2, 8, 1024, 64]],
        [[2, 8, 128, 64], [2, 8, 1024, 64], [2, 8, 1024, 64]],
        [[1, 4, 77, 40], [1, 4, 99, 40], [1, 4, 99, 32]],
    ]
    counts = json.loads(run(FORMULAS, "torch", tmp_path, json.dumps(shapes)).stdout)
    for (query, key, value), (forward, backward) in zip(shapes, counts, strict=True):
        types = ";".join(["c10::BFloat16"] * 5)
        found = work_of_operator(
            "aten::_scaled_dot_product_flash_attention",
            json.dumps([query, key, value]), types, json.dumps(["", "", "", "0.", "False"]),
        )  # fmt: skip
        assert found is not None
        assert (found.flop, found.model_flop) == (forward, forward)
        grad = [*query[:3], value[3]]
        back = [[size[0], size[2], size[1], size[3]] for size in (grad, query, key, value)]
        found = work_of_operator(
            "aten::_flash_attention_backward",
            json.dumps(back), types, json.dumps([""] * 11 + ["False"]),
        )  # fmt: skip
        assert found is not None
        # The counter's five products include the scores, computed again; the model needs four.
        scores = 2 * query[0] * query[1] * query[2] * key[2] * query[3]
        assert (found.flop, found.model_flop) == (backward, backward - scores)
