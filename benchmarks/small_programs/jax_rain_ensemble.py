"""Rain forecast with error bars: an ensemble of small networks trained on different bootstrap samples."""
import os
import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np


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


@dataclass(frozen=True)
class Settings:
    members: int = 32
    inputs: int = 20
    hidden: int = 64
    batch: int = 64
    lr: float = 1e-3
    rows: int = 8000


def weather(settings, seed=14):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((settings.rows, settings.inputs)).astype(np.float32)
    wet = np.tanh(x[:, :5].sum(1)) + 0.5 * x[:, 5] * x[:, 6] - 0.3 * x[:, 7] ** 2
    y = np.log1p(np.exp(wet + 0.4 * rng.standard_normal(settings.rows)))
    return x, y.astype(np.float32)


def init_member(key, s):
    a, b, c = jax.random.split(key, 3)
    return {
        "w1": jax.random.normal(a, (s.inputs, s.hidden)) / s.inputs ** 0.5, "b1": jnp.zeros(s.hidden),
        "w2": jax.random.normal(b, (s.hidden, s.hidden)) / s.hidden ** 0.5, "b2": jnp.zeros(s.hidden),
        "w3": jax.random.normal(c, (s.hidden, 2)) / s.hidden ** 0.5, "b3": jnp.zeros(2),
    }


def member_loss(p, x, y):
    """Gaussian negative log likelihood; the network gives mean and log variance."""
    h = jax.nn.gelu(x @ p["w1"] + p["b1"])
    h = jax.nn.gelu(h @ p["w2"] + p["b2"])
    mean, log_var = jnp.split(h @ p["w3"] + p["b3"], 2, axis=-1)
    return 0.5 * jnp.mean(jnp.square(y[:, None] - mean) * jnp.exp(-log_var) + log_var)


def adam_member(p, m, v, t, x, y, lr):
    loss, g = jax.value_and_grad(member_loss)(p, x, y)
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
    scale = lr * jnp.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
    p = jax.tree.map(lambda a, b, c: a - scale * b / (jnp.sqrt(c) + 1e-8), p, m, v)
    return p, m, v, loss


class Ensemble:
    def __init__(self, settings):
        self.s = settings
        keys = jax.random.split(jax.random.PRNGKey(14), settings.members)
        self.params = [init_member(k, settings) for k in keys]
        self.m = [jax.tree.map(jnp.zeros_like, p) for p in self.params]
        self.v = [jax.tree.map(jnp.zeros_like, p) for p in self.params]
        self.t = 0
        self.update = jax.jit(adam_member)

    def step(self, x, y):
        """x: (members, batch, inputs), y: (members, batch)"""
        self.t += 1
        losses = []
        for k in range(self.s.members):
            self.params[k], self.m[k], self.v[k], loss = self.update(
                self.params[k], self.m[k], self.v[k], self.t, x[k], y[k], self.s.lr)
            losses.append(loss)
        return jnp.stack(losses)


def main():
    settings = Settings()
    x, y = weather(settings)
    rng = np.random.default_rng(14)
    bootstrap = rng.integers(0, settings.rows, (settings.members, settings.rows))
    ensemble = Ensemble(settings)
    member = np.arange(settings.members)[:, None]
    meter, step = Meter(), 0
    while True:
        rows = bootstrap[member, rng.integers(0, settings.rows, (settings.members, settings.batch))]
        losses = ensemble.step(x[rows], y[rows])
        jax.block_until_ready(losses)
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {float(losses.mean()):.4f} spread {float(losses.std()):.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
