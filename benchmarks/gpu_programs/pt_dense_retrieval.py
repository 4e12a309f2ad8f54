"""News search: queries are encoded, compared with every article's vector, and the best
articles by similarity and freshness are returned."""
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

ARTICLES = 2000 if SMOKE else 250_000
QUERIES = 4 if SMOKE else 16             # per request
TOKENS, VOCAB = (8, 100) if SMOKE else (32, 30000)
WIDTH, HEADS, DEPTH = (32, 2, 2) if SMOKE else (512, 8, 6)
BEST = 20
LOG_EVERY = 5 if SMOKE else 50


def wait():
    torch.cuda.is_available() and torch.cuda.synchronize()


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds=40):
        self.seconds = float(os.environ.get("PROGRAM_SECONDS", seconds))
        self.start, self.count, self.mark = None, 0, None

    def step(self, n=1):
        self.last = time.perf_counter()
        self.count += n
        if self.start is None:
            self.start = self.last
        if self.mark is None and self.last - self.start > 0.3 * self.seconds:
            wait()
            self.mark = (self.count, time.perf_counter())
        return self.last - self.start < self.seconds

    def report(self):
        wait()
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {time.perf_counter() - since:.3f}")

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class QueryEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Parameter(torch.randn(TOKENS, WIDTH) * 0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens) + self.pos
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.norm(x).mean(1).float(), dim=-1)


class Index:
    """Article vectors on the device; freshness is a number between 0 and 1 per article."""

    def __init__(self, vectors, age_days):
        self.vectors = vectors
        self.freshness = np.exp(-age_days / 30).astype(np.float32)

    def search(self, query):
        scores = (query @ self.vectors.t()).cpu().numpy()
        scores = scores + 0.1 * self.freshness
        best = np.argpartition(-scores, BEST, axis=1)[:, :BEST]
        value = np.take_along_axis(scores, best, axis=1)
        order = np.argsort(-value, axis=1)
        return np.take_along_axis(best, order, axis=1), np.take_along_axis(value, order, axis=1)


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    encoder = QueryEncoder().to(DEVICE, torch.bfloat16).eval()
    vectors = F.normalize(torch.randn(ARTICLES, WIDTH, device=DEVICE), dim=-1)
    index = Index(vectors, rng.exponential(60, ARTICLES))
    stream = torch.from_numpy(rng.integers(0, VOCAB, (1000, QUERIES, TOKENS)))

    meter, request, answered = Meter(), 0, 0
    while True:
        tokens = stream[request % len(stream)].to(DEVICE)
        ids, scores = index.search(encoder(tokens))
        answered += len(ids)
        if request % LOG_EVERY == 0:
            print(f"request {request} first {ids[0, :4].tolist()} score {scores[0, 0]:.4f} answered {answered}")
        request += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
