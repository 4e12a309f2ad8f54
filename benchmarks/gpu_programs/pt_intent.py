"""Adapts a pretrained-size BERT encoder to banking intents: the last two layers and the classifier are tuned."""
import os
import time

import torch
import torch.nn.functional as F
from transformers import BertConfig, BertForSequenceClassification

SMOKE = bool(os.environ.get("SMOKE"))
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LAYERS, WIDTH, HEADS = (3, 32, 2) if SMOKE else (12, 768, 12)
VOCAB, LENGTH, INTENTS = (200, 16, 7) if SMOKE else (30522, 128, 77)
BATCH, SENTENCES = (4, 64) if SMOKE else (96, 12000)


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


def make_data():
    """Token ids with a few intent words in each sentence; all sentences are about as long."""
    g = torch.Generator().manual_seed(1)
    labels = torch.randint(0, INTENTS, (SENTENCES,), generator=g)
    tokens = torch.randint(INTENTS + 2, VOCAB, (SENTENCES, LENGTH), generator=g)
    for _ in range(3):
        place = torch.randint(1, LENGTH, (SENTENCES, 1), generator=g)
        tokens.scatter_(1, place, labels[:, None] + 2)
    tokens[:, 0] = 1
    return tokens.to(DEVICE), labels.to(DEVICE)


def build():
    config = BertConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        max_position_embeddings=LENGTH,
        num_labels=INTENTS,
        attn_implementation="sdpa",
    )
    with torch.device(DEVICE):
        return BertForSequenceClassification(config).to(DEVICE)


def tuned_parameters(model):
    """The classifier, the pooler and the two layers below them."""
    tuned = ["classifier.", "bert.pooler."]
    tuned += [f"bert.encoder.layer.{i}." for i in range(LAYERS - 2, LAYERS)]
    return [p for name, p in model.named_parameters() if name.startswith(tuple(tuned))]


def schedule(step, warmup=50, horizon=20000):
    return min((step + 1) / warmup, max(0.05, 1 - step / horizon))


def main():
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    tokens, labels = make_data()
    model = build().train()
    params = tuned_parameters(model)
    optimizer = torch.optim.AdamW(params, lr=3e-4, weight_decay=0.01, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    total = sum(p.numel() for p in model.parameters())
    print(f"tuning {sum(p.numel() for p in params) / 1e6:.1f} of {total / 1e6:.1f} million weights")

    meter = Meter()
    step, seen, right = 0, 0, torch.zeros((), device=DEVICE)
    order, at = torch.randperm(SENTENCES, device=DEVICE), 0
    while True:
        if at + BATCH > SENTENCES:
            order, at = torch.randperm(SENTENCES, device=DEVICE), 0
        rows = order[at:at + BATCH]
        at += BATCH

        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=DEVICE == "cuda"):
            logits = model(input_ids=tokens[rows]).logits
        loss = F.cross_entropy(logits.float(), labels[rows], label_smoothing=0.05)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()
        scheduler.step()
        model.zero_grad(set_to_none=True)

        right += (logits.detach().argmax(-1) == labels[rows]).sum()
        seen += BATCH
        step += 1
        if step % 40 == 0:
            print(f"step {step}: loss {loss.item():.4f}, accuracy {right.item() / seen:.3f}")
            seen = 0
            right.zero_()
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
