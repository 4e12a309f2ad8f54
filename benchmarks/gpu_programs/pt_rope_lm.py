"""Long-context language model pretraining in bfloat16 on synthetic token streams."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16

VOCAB = 256 if SMOKE else 32000
CONTEXT = 32 if SMOKE else 4096
BATCH = 2
WIDTH, HEADS, DEPTH = (64, 2, 2) if SMOKE else (1024, 16, 6)
HEAD_DIM = WIDTH // HEADS
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

def rotary_table(length, dim, base=10000.0):
    # angles need full precision: bfloat16 can't tell position 4095 from 4096
    frequency = base ** (-torch.arange(0, dim, 2, device=DEVICE).float() / dim)
    angle = torch.outer(torch.arange(length, device=DEVICE).float(), frequency)
    angle = torch.cat([angle, angle], dim=-1)
    return angle.cos(), angle.sin()


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat([-b, a], dim=-1)


def apply_rotary(x, cos, sin):
    return x * cos + rotate_half(x) * sin


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, rotary):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, HEADS, HEAD_DIM).permute(2, 0, 3, 1, 4)
        q, k = apply_rotary(q, *rotary), apply_rotary(k, *rotary)
        y = F.scaled_dot_product_attention(q, k, v.to(q.dtype), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH).to(x.dtype))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        hidden = WIDTH * 8 // 3 // 64 * 64
        self.gate_up = nn.Linear(WIDTH, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, WIDTH, bias=False)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return self.down(F.silu(gate) * up)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.feed = Attention(), FeedForward()

    def forward(self, x, rotary):
        x = x + self.attention(self.norm1(x), rotary)
        return x + self.feed(self.norm2(x))


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(DEPTH))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens, rotary):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, rotary)
        return self.head(self.norm(x))


def main():
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = LanguageModel().to(DTYPE)
    rotary = rotary_table(CONTEXT, HEAD_DIM)
    stream = (torch.rand(2_000_000, device=DEVICE) ** 4 * VOCAB).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), fused=DEVICE == "cuda")
    window = torch.arange(CONTEXT + 1, device=DEVICE)

    meter, step = Meter(), 0
    while True:
        start = torch.randint(len(stream) - CONTEXT - 1, (BATCH, 1), device=DEVICE)
        tokens = stream[start + window]
        logits = model(tokens[:, :-1], rotary)
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
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
