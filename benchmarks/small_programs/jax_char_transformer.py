"""Character transformer on made-up text."""
import argparse
import os
import time

import jax
import jax.numpy as jnp
import numpy as np


class Meter:
    """Counts steps and says when the time budget is used up."""

    def __init__(self, seconds):
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

def init(key, vocab=64, dim=96, layers=3, length=64):
    def normal(*shape):
        nonlocal key
        key, sub = jax.random.split(key)
        return jax.random.normal(sub, shape) * 0.02
    block = lambda: {"qkv": normal(dim, 3 * dim), "out": normal(dim, dim), "up": normal(dim, 4 * dim), "down": normal(4 * dim, dim),
                     "g1": jnp.ones(dim), "g2": jnp.ones(dim)}
    return {"tok": normal(vocab, dim), "pos": normal(length, dim), "blocks": [block() for _ in range(layers)], "g": jnp.ones(dim)}


def norm(x, g):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * g


def loss_fn(params, ids, heads=4):
    x, target = ids[:, :-1], ids[:, 1:]
    b, t = x.shape
    mask = jnp.tril(jnp.ones((t, t), bool))
    h = params["tok"][x] + params["pos"][:t]
    for p in params["blocks"]:
        q, k, v = jnp.split((norm(h, p["g1"]) @ p["qkv"]).reshape(b, t, heads, -1), 3, axis=-1)
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        a = jax.nn.softmax(jnp.where(mask, s, -1e9))
        h = h + jnp.einsum("bhqk,bkhd->bqhd", a, v).reshape(b, t, -1) @ p["out"]
        h = h + jax.nn.gelu(norm(h, p["g2"]) @ p["up"]) @ p["down"]
    logp = jax.nn.log_softmax(norm(h, params["g"]) @ params["tok"].T)
    return -jnp.mean(jnp.take_along_axis(logp, target[..., None], axis=-1))


@jax.jit
def train_step(params, momentum, ids):
    loss, grads = jax.value_and_grad(loss_fn)(params, ids)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    return jax.tree.map(lambda p, m: p - 0.05 * m, params, momentum), momentum, loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=12)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    words = [rng.integers(1, 64, rng.integers(2, 8)) for _ in range(200)]
    text = np.concatenate([np.append(words[i], 0) for i in rng.zipf(1.5, 60_000) % 200]).astype(np.int32)
    params = init(jax.random.key(0), length=args.length)
    momentum = jax.tree.map(jnp.zeros_like, params)
    span = np.arange(args.length + 1)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        ids = text[rng.integers(0, len(text) - len(span), args.batch_size)[:, None] + span]
        params, momentum, loss = train_step(params, momentum, ids)
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {float(loss):.4f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
