"""Embeds a corpus of packed 512-token passages with a large bidirectional encoder."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
VOCAB, LENGTH = (300, 16) if SMOKE else (50304, 512)
WIDTH, LAYERS, HEADS = (64, 2, 2) if SMOKE else (4096, 6, 32)
BATCH, PASSAGES = (4, 64) if SMOKE else (32, 8192)


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
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return F.normalize(self.norm(x).mean(1).float(), dim=1)


class Sink:
    """Takes vectors to the host one batch late, so that the GPU never waits for the copy."""

    def __init__(self, rows):
        self.vectors = torch.empty(rows, WIDTH)
        pin = DEVICE == "cuda"
        self.buffers = [torch.empty(BATCH, WIDTH, pin_memory=pin) for _ in range(2)]
        self.events = [torch.cuda.Event() for _ in range(2)] if pin else None
        self.waiting, self.turn = None, 0

    def put(self, at, vectors):
        buffer, turn = self.buffers[self.turn], self.turn
        buffer.copy_(vectors, non_blocking=True)
        if self.events:
            self.events[turn].record()
        self.flush()
        self.waiting, self.turn = (at, turn), 1 - turn

    def flush(self):
        if self.waiting is not None:
            at, turn = self.waiting
            if self.events:
                self.events[turn].synchronize()
            self.vectors[at:at + BATCH] = self.buffers[turn]
            self.waiting = None


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    torch.set_default_dtype(DTYPE)
    with torch.device(DEVICE):
        model = Encoder().eval()
    torch.set_default_dtype(torch.float32)
    corpus = torch.randint(0, VOCAB, (PASSAGES, LENGTH), generator=torch.Generator().manual_seed(1))
    corpus = corpus.pin_memory() if DEVICE == "cuda" else corpus
    sink = Sink(PASSAGES)

    meter = Meter()
    at, batches = 0, 0
    while True:
        ids = corpus[at:at + BATCH].to(DEVICE, non_blocking=True)
        sink.put(at, model(ids))
        at = (at + BATCH) % PASSAGES
        batches += 1
        if batches % 50 == 0:
            print(f"{batches * BATCH} passages, first component {sink.vectors[0, 0].item():.5f}")
        if not meter.step():
            break
    sink.flush()
    meter.report()


if __name__ == "__main__":
    main()
