"""Transcribes batches of call-centre utterances with a CTC acoustic model (greedy decoding)."""
import os
import string
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
MELS, WIDTH, LAYERS, HEADS = (80, 32, 1, 2) if SMOKE else (80, 512, 12, 8)
BATCH, FRAMES, BATCHES = (3, 80, 4) if SMOKE else (64, 1280, 12)
ALPHABET = ["<blank>", " "] + list(string.ascii_lowercase) + [a + b for a in "aeiou" for b in "nrstl"]
BLANK = 0


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


class Subsample(nn.Module):
    """Two strided convolutions: a quarter of the frames."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(1, channels, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.project = nn.Linear(channels * MELS // 4, WIDTH)

    def forward(self, mel):
        x = mel.unsqueeze(1).contiguous(memory_format=torch.channels_last)
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.project(x.permute(0, 2, 1, 3).flatten(2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.SiLU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.ff(self.norm2(x))


class Acoustic(nn.Module):
    def __init__(self):
        super().__init__()
        self.subsample = Subsample(8 if SMOKE else 128)
        self.position = nn.Parameter(0.1 * torch.randn(FRAMES // 4, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, mel, lengths):
        x = self.subsample(mel) + self.position
        mask = (torch.arange(x.shape[1], device=x.device) < lengths[:, None])[:, None, None]
        mask = mask.expand(-1, 1, x.shape[1], -1)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


def incoming():
    """A few batches of log-mel features as the front end leaves them: in pinned host memory."""
    g = torch.Generator().manual_seed(3)
    batches = []
    for _ in range(BATCHES):
        mel = torch.randn(BATCH, FRAMES, MELS, generator=g).to(DTYPE)
        lengths = torch.randint(FRAMES // 5, FRAMES // 4 + 1, (BATCH,), generator=g)
        if DEVICE == "cuda":
            mel, lengths = mel.pin_memory(), lengths.pin_memory()
        batches.append((mel, lengths, lengths.tolist()))
    return batches


def decode(logits, lengths):
    """Most likely symbol of each frame, repeats merged, blanks dropped."""
    best = logits.argmax(-1)
    texts = []
    for row, length in zip(best, lengths):
        symbols = torch.unique_consecutive(row[:length])
        symbols = symbols[symbols != BLANK]
        texts.append("".join(ALPHABET[s] for s in symbols.tolist()))
    return texts


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    model = Acoustic().to(DEVICE, DTYPE).to(memory_format=torch.channels_last).eval()
    batches = incoming()
    meter = Meter()
    served, letters = 0, 0
    while True:
        mel, lengths, host_lengths = batches[served % len(batches)]
        logits = model(mel.to(DEVICE, non_blocking=True), lengths.to(DEVICE, non_blocking=True))
        texts = decode(logits, host_lengths)
        letters += sum(map(len, texts))
        served += 1
        if served % 25 == 0:
            print(f"{served} batches, {letters} letters, e.g. {texts[0][:30]!r}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
