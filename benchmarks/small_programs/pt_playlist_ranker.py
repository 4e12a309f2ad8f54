"""Serve playlist continuations: rank candidate tracks for a listener's history."""
import os
import time

import torch
import torch.nn as nn

torch.manual_seed(0)
TRACKS, DIM, HISTORY, CANDIDATES, AUDIO = 20_000, 48, 30, 24, 512


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
        if self.mark is None and self.last - self.start > 0.1 * self.seconds:
            self.mark = (self.count, self.last)
        return self.last - self.start < self.seconds

    def report(self):
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {self.last - since:.3f}")

class ListenerEncoder(nn.Module):
    """Summarises the most recently played tracks."""

    def __init__(self, tracks):
        super().__init__()
        self.tracks = tracks
        self.position = nn.Parameter(0.02 * torch.randn(HISTORY, DIM))
        layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, history):
        return self.encoder(self.tracks(history) + self.position).mean(1)


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.tracks = nn.Embedding(TRACKS, DIM)
        self.listener = ListenerEncoder(self.tracks)
        self.audio = nn.Sequential(nn.Linear(AUDIO, 512), nn.ReLU(), nn.Linear(512, DIM))
        self.score = nn.Sequential(nn.Linear(3 * DIM, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, history, candidates, audio):
        listener = self.listener(history)
        pair = torch.cat([listener, self.tracks(candidates), self.audio(audio)], dim=-1)
        return self.score(pair).squeeze(-1)


class Service:
    """Answers one request at a time."""

    def __init__(self, model, audio):
        self.model = model.eval()
        self.audio = audio

    @torch.inference_mode()
    def rank(self, history, candidates, k=8):
        count = candidates.shape[0]
        histories = history.unsqueeze(0).expand(count, -1)
        scores = self.model(histories, candidates, self.audio[candidates])
        best = scores.topk(k)
        return candidates[best.indices], best.values


def make_request(generator):
    taste = torch.randint(0, TRACKS - 400, (1,), generator=generator)
    history = taste + torch.randint(0, 400, (HISTORY,), generator=generator)
    candidates = torch.randint(0, TRACKS, (CANDIDATES,), generator=generator)
    return history, candidates


def main():
    generator = torch.Generator().manual_seed(1)
    audio = torch.randn(TRACKS, AUDIO, generator=generator)
    service = Service(Ranker(), audio)
    requests = [make_request(generator) for _ in range(300)]
    total = 0.0
    meter = Meter()
    while True:
        history, candidates = requests[meter.count % len(requests)]
        tracks, scores = service.rank(history, candidates)
        total += scores[0].item()
        if meter.count % 50 == 0:
            print(f"step {meter.count} first {tracks[0].item()} mean top score {total / (meter.count + 1):.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
