"""Contact prediction: which residue pairs of a (synthetic) protein touch each other."""
import os
import time

import torch
from torch import nn
import torch.nn.functional as F


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


AMINO = 20
HP = dict(length=96, width=64, pair=64, batch=4, lr=1e-3, proteins=240)


def random_protein(length, table):
    """A compact random walk; residues prefer neighbours by the affinity table."""
    residues = torch.randint(0, AMINO, (length,))
    steps = F.normalize(torch.randn(length, 3), dim=1)
    steps[1:] = F.normalize(steps[1:] + 0.6 * steps[:-1], dim=1)
    place = steps.cumsum(0)
    place = place - 0.9 * place.mean(0)
    distance = torch.cdist(place, place)
    contact = (distance - table[residues][:, residues] < 3.0).float()
    return residues, contact


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.embed = nn.Embedding(AMINO, width)
        self.convs = nn.ModuleList([nn.Conv1d(width, width, 5, padding=2) for _ in range(3)])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(3)])

    def forward(self, residues):
        h = self.embed(residues)
        for conv, norm in zip(self.convs, self.norms):
            h = h + F.relu(conv(norm(h).transpose(1, 2))).transpose(1, 2)
        return h


class PairHead(nn.Module):
    def __init__(self, width, pair):
        super().__init__()
        self.hidden = nn.Linear(2 * width, pair)
        self.out = nn.Linear(pair, 1)

    def forward(self, h):
        b, n, d = h.shape
        rows = h.unsqueeze(2).expand(b, n, n, d)
        columns = h.unsqueeze(1).expand(b, n, n, d)
        pairs = torch.cat([rows, columns], dim=-1)
        return self.out(F.relu(self.hidden(pairs))).squeeze(-1)


class ContactNet(nn.Module):
    def __init__(self, width, pair):
        super().__init__()
        self.encoder = Encoder(width)
        self.head = PairHead(width, pair)

    def forward(self, residues):
        logits = self.head(self.encoder(residues))
        return (logits + logits.transpose(1, 2)) / 2


def precision_at_l(logits, contact, skip=6):
    n = logits.shape[-1]
    far = torch.ones(n, n).triu(skip).bool()
    values, truth = logits[:, far], contact[:, far]
    best = values.topk(n, dim=1).indices
    return truth.gather(1, best).mean().item()


def train(hp):
    torch.manual_seed(2)
    table = torch.randn(AMINO, AMINO) * 0.4
    table = table + table.T
    proteins = [random_protein(hp["length"], table) for _ in range(hp["proteins"])]
    residues = torch.stack([p[0] for p in proteins])
    contacts = torch.stack([p[1] for p in proteins])
    net = ContactNet(hp["width"], hp["pair"])
    optimizer = torch.optim.Adam(net.parameters(), lr=hp["lr"])
    meter = Meter()
    step, going = 0, True
    while going:
        for pick in torch.randperm(len(residues)).split(hp["batch"]):
            x, y = residues[pick], contacts[pick]
            logits = net(x)
            loss = F.binary_cross_entropy_with_logits(logits, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 60 == 0:
                print(f"step {step} loss {loss.item():.4f} P@L {precision_at_l(logits.detach(), y):.3f}")
            going = meter.step()
            if not going:
                break
    meter.report()


if __name__ == "__main__":
    train(HP)
