"""Draws several completions for a batch of chat prompts from a decoder with a key/value cache."""
import os
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
VOCAB, WIDTH, LAYERS = (512, 64, 2) if SMOKE else (32000, 4096, 8)
HEADS, KV_HEADS, FF = (4, 2, 128) if SMOKE else (32, 8, 11008)
BATCH, PROMPT, NEW, CHUNK = (2, 12, 16, 4) if SMOKE else (24, 3072, 256, 8)
HEAD = WIDTH // HEADS


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


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.groups = HEADS // KV_HEADS
        self.qkv = nn.Linear(WIDTH, (HEADS + 2 * KV_HEADS) * HEAD, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cache, pos, cos, sin):
        b, t, _ = x.shape
        heads = self.qkv(x).view(b, t, HEADS + 2 * KV_HEADS, HEAD).transpose(1, 2)
        q, k, v = heads.split((HEADS, KV_HEADS, KV_HEADS), dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        keys, values = cache
        end = pos + t
        keys[:, :, pos:end] = k
        values[:, :, pos:end] = v
        k = keys[:, :, :end].repeat_interleave(self.groups, dim=1)
        v = values[:, :, :end].repeat_interleave(self.groups, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=t > 1)
        return self.out(y.transpose(1, 2).reshape(b, t, WIDTH))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 2 * FF, bias=False)
        self.down = nn.Linear(FF, WIDTH, bias=False)

    def forward(self, x, cache, pos, cos, sin):
        x = x + self.attention(self.norm1(x), cache, pos, cos, sin)
        gate, value = self.up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * value)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        freq = 10000 ** (-torch.arange(0, HEAD, 2, dtype=torch.float32) / HEAD)
        angle = torch.arange(PROMPT + NEW + 1, dtype=torch.float32)[:, None] * freq
        self.register_buffer("cos", angle.cos().to(DTYPE))
        self.register_buffer("sin", angle.sin().to(DTYPE))

    def forward(self, tokens, caches, pos):
        x = self.embed(tokens)
        cos, sin = self.cos[pos:pos + tokens.shape[1]], self.sin[pos:pos + tokens.shape[1]]
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache, pos, cos, sin)
        return self.head(self.norm(x[:, -1]))


def pick(logits, temperature=0.8):
    probs = (logits.float() / temperature).softmax(-1)
    return (probs / torch.empty_like(probs).exponential_(1.0)).argmax(-1, keepdim=True)


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    torch.backends.cuda.enable_cudnn_sdp(False)  # would plan anew for each length
    torch.set_default_dtype(DTYPE)
    with torch.device(DEVICE):
        model = Decoder().eval()
        prompts = torch.randint(0, VOCAB, (BATCH, PROMPT))
        shape = (BATCH, KV_HEADS, PROMPT + NEW, HEAD)
        caches = [(torch.zeros(shape), torch.zeros(shape)) for _ in range(LAYERS)]
    first = model(prompts, caches, 0)

    meter = Meter()
    pos, chunks, finished = PROMPT, 0, []
    token, pieces = pick(first), []
    while True:
        new = []
        for _ in range(CHUNK):
            new.append(token)
            token = pick(model(token, caches, pos))
            pos += 1
        pieces.append(torch.cat(new, dim=1).tolist())
        chunks += 1
        if pos + CHUNK > PROMPT + NEW:  # the next completion starts again behind the prompt
            finished.append([sum(parts, []) for parts in zip(*pieces)])
            pos, token, pieces = PROMPT, pick(first), []
        if chunks % 16 == 0:
            print(f"chunk {chunks}: {len(finished)} completions each, last token {int(token[0])}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
