"""Next-item recommendation from click sessions: a causal transformer with tied item
embeddings and a full softmax over the catalogue."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.set_float32_matmul_precision("high")

N_ITEMS = 500 if SMOKE else 60000
LENGTH = 12 if SMOKE else 64
BATCH = 8 if SMOKE else 128
WIDTH, HEADS, DEPTH = (32, 2, 1) if SMOKE else (512, 8, 2)
SESSIONS = 200 if SMOKE else 50000
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

def make_sessions():
    """Popularity-skewed walks over the catalogue; ids run from 1 to N_ITEMS."""
    start = (torch.rand(SESSIONS, 1, device=DEVICE) ** 3 * N_ITEMS).long()
    hop = (torch.randn(SESSIONS, LENGTH, device=DEVICE) * 20).long().cumsum(1)
    return (start + hop) % N_ITEMS + 1


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class SessionModel(nn.Module):
    def __init__(self):
        super().__init__()
        # row 0 stands for "no item"
        self.table = nn.Parameter(torch.randn(N_ITEMS + 1, WIDTH) * 0.02)
        self.bias = nn.Parameter(torch.zeros(N_ITEMS + 1))
        self.pos = nn.Parameter(torch.randn(LENGTH - 1, WIDTH) * 0.02)
        self.blocks = nn.ModuleList(Block(WIDTH, HEADS) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, items):
        x = F.embedding(items, self.table) + self.pos
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.table, self.bias)


def main():
    torch.manual_seed(0)
    model = SessionModel().to(DEVICE)
    sessions = make_sessions()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=DEVICE == "cuda")

    meter, step = Meter(), 0
    while True:
        batch = sessions[torch.randint(SESSIONS, (BATCH,), device=DEVICE)]
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % LOG_EVERY == 0:
            print(f"step {step} loss {loss.item():.4f}")
        step += 1
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
