"""Two-headed uplift model for coupons with a hand-written Adam."""
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

def dense(key, i, o):
    return {"w": jax.random.normal(key, (i, o)) * (2 / i) ** 0.5, "b": jnp.zeros(o)}


def init(key, features=30, width=96, depth=4):
    keys = iter(jax.random.split(key, depth + 4))
    trunk = [dense(next(keys), features if i == 0 else width, width) for i in range(depth)]
    heads = {name: [dense(next(keys), width, 32), dense(next(keys), 32, 1)] for name in ("base", "uplift")}
    return {"trunk": trunk, "heads": heads}


def forward(params, x):
    for layer in params["trunk"]:
        x = jax.nn.silu(x @ layer["w"] + layer["b"])
    out = {}
    for name, (a, b) in params["heads"].items():
        out[name] = (jax.nn.silu(x @ a["w"] + a["b"]) @ b["w"] + b["b"])[:, 0]
    return out


def loss_fn(params, x, treated, y):
    out = forward(params, x)
    logit = out["base"] + treated * out["uplift"]
    return jnp.mean(jnp.logaddexp(0.0, logit) - y * logit)


value_and_grad = jax.jit(jax.value_and_grad(loss_fn))


def adam(params, grads, m, v, step, lr=1e-3, b1=0.9, b2=0.999, eps=1e-8):
    m = jax.tree.map(lambda m, g: b1 * m + (1 - b1) * g, m, grads)
    v = jax.tree.map(lambda v, g: b2 * v + (1 - b2) * g ** 2, v, grads)
    rate = lr * jnp.sqrt(1 - b2 ** step) / (1 - b1 ** step)
    params = jax.tree.map(lambda p, m, v: p - rate * m / (jnp.sqrt(v) + eps), params, m, v)
    return params, m, v


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    n = 50_000
    x_all = rng.normal(size=(n, 30)).astype(np.float32)
    treated = rng.integers(0, 2, n).astype(np.float32)
    y_all = (x_all[:, 0] + treated * x_all[:, 1] + rng.logistic(size=n) > 0).astype(np.float32)
    params = init(jax.random.key(0))
    m = jax.tree.map(jnp.zeros_like, params)
    v = jax.tree.map(jnp.zeros_like, params)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        index = rng.integers(0, n, args.batch_size)
        loss, grads = value_and_grad(params, x_all[index], treated[index], y_all[index])
        step += 1
        params, m, v = adam(params, grads, m, v, float(step))
        if step % 100 == 0:
            print(f"step {step} loss {float(loss):.4f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
