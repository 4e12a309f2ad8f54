"""Offline embedding of a document collection: passages of equal length go through a
bidirectional encoder, pooled vectors come back to host memory."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CUDA = DEVICE == "cuda"

VOCAB = 200 if SMOKE else 30522
LENGTH = 16 if SMOKE else 256            # documents are cut into passages of exactly this length
BATCH = 4 if SMOKE else 256
PASSAGES = 64 if SMOKE else 100_000
WIDTH, HEADS, DEPTH = (32, 2, 2) if SMOKE else (768, 12, 12)
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
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, d)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PassageEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.pos = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.1)
        self.layers = nn.ModuleList(Layer() for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens):
        x = self.embed(tokens) + self.pos
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.norm(x).mean(1).float(), dim=-1)


class Uploader:
    """Copies the next batch to the device while the current one is worked on."""

    def __init__(self, passages):
        self.passages, self.at = passages, 0
        self.stream = torch.cuda.Stream() if CUDA else None
        self.prepare()

    def prepare(self):
        if self.at + BATCH > len(self.passages):
            self.at = 0
        batch = self.passages[self.at:self.at + BATCH]
        self.position, self.at = self.at, self.at + BATCH
        if not CUDA:
            self.ready = batch
            return
        with torch.cuda.stream(self.stream):
            self.ready = batch.to(DEVICE, non_blocking=True)

    def next(self):
        if CUDA:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.ready.record_stream(torch.cuda.current_stream())
        batch, position = self.ready, self.position
        self.prepare()
        return position, batch


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    passages = torch.randint(VOCAB, (PASSAGES, LENGTH), dtype=torch.int32)
    vectors = torch.empty(PASSAGES, WIDTH)
    if CUDA:
        passages, vectors = passages.pin_memory(), vectors.pin_memory()
    with torch.device(DEVICE):
        model = PassageEncoder().to(torch.bfloat16).eval()
    if not SMOKE:
        for layer in model.layers:
            layer.compile(dynamic=False)
    uploader = Uploader(passages)
    behind = []                          # events of batches still under way

    meter, step = Meter(), 0
    while True:
        position, batch = uploader.next()
        vectors[position:position + BATCH].copy_(model(batch), non_blocking=True)
        if CUDA:
            behind.append(torch.cuda.Event())
            behind[-1].record()
            if len(behind) > 2:
                behind.pop(0).synchronize()
        if step % LOG_EVERY == 0:
            print(f"batch {step} passages from {position}")
        step += 1
        if not meter.step():
            break
    meter.report()
    if SMOKE:
        print("vectors", round(vectors[:BATCH].abs().sum().item(), 3))


if __name__ == "__main__":
    main()
