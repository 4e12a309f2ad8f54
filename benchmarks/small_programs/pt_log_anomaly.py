"""Detect anomalous lines in server logs with a small recurrent classifier."""
import os
import random
import re
import time
import zlib

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)
random.seed(0)
BUCKETS, DIM, BATCH = 8192, 32, 96
TOKEN = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)*|[a-z]+|[^\sa-z0-9]", re.IGNORECASE)


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

def tokenize(line):
    """Hashed token ids of a line; numbers become their length."""
    ids = []
    for token in TOKEN.findall(line):
        if token[0].isdigit():
            token = "<num%d>" % min(len(token), 9)
        ids.append(zlib.crc32(token.lower().encode()) % (BUCKETS - 1) + 1)
    return ids


class LogLines(Dataset):
    def __init__(self, lines, labels):
        self.lines = lines
        self.labels = labels

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, i):
        return torch.tensor(tokenize(self.lines[i])), self.labels[i]


def collate(samples):
    ids, labels = zip(*samples)
    return pad_sequence(ids, batch_first=True), torch.tensor(labels, dtype=torch.float32)


class LineClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(BUCKETS, DIM, padding_idx=0)
        self.mix = nn.Conv1d(DIM, 48, 3, padding=1)
        self.head = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))

    def forward(self, ids):
        x = self.mix(self.embedding(ids).transpose(1, 2)).relu()
        return self.head(x.amax(-1)).squeeze(-1)


def make_logs(count=6000):
    words = ["accepted", "request", "connection", "from", "timeout", "worker", "cache", "miss", "user", "session",
             "opened", "closed", "retry", "disk", "sync", "commit", "block", "replica", "lease", "heartbeat"]
    lines, labels = [], []
    for _ in range(count):
        bad = random.random() < 0.2
        body = " ".join(random.choices(words, k=random.randint(12, 20)))
        tail = "checksum mismatch" if bad and random.random() < 0.9 else "ok"
        lines.append(f"2024-05-{random.randint(1, 28):02d}T{random.randint(0, 23):02d}:14:07.{random.randint(0, 999)} "
                     f"10.0.{random.randint(0, 255)}.{random.randint(0, 255)} [pid {random.randint(100, 32000)}] "
                     f"INFO {body} addr=0x{random.getrandbits(32):08x} {tail}")
        labels.append(float(bad))
    return lines, labels


def main():
    loader = DataLoader(LogLines(*make_logs()), batch_size=BATCH, shuffle=True, collate_fn=collate, drop_last=True)
    model = LineClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    meter, running = Meter(), True
    while running:
        for ids, labels in loader:
            loss = F.binary_cross_entropy_with_logits(model(ids), labels)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            if meter.count % 25 == 0:
                print(f"step {meter.count} loss {loss.item():.5f}")
            running = meter.step()
            if not running:
                break
    meter.report()


if __name__ == "__main__":
    main()
