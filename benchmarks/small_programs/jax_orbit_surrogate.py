"""A neural surrogate for the motion of three bodies: positions now -> positions some time later."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)


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


BODIES, DT, HORIZON = 3, 2e-3, 200


def accelerations(q):
    d = q[:, None, :, :] - q[:, :, None, :]
    r2 = (d ** 2).sum(-1) + 0.05
    return (d / r2[..., None] ** 1.5).sum(2)


def integrate(q, p, steps):
    """Leapfrog for a batch of systems."""
    for _ in range(steps):
        p = p + 0.5 * DT * accelerations(q)
        q = q + DT * p
        p = p + 0.5 * DT * accelerations(q)
    return q, p


def make_pairs(count, seed=1):
    rng = np.random.default_rng(seed)
    q = rng.normal(size=(count, BODIES, 2))
    p = 0.4 * rng.normal(size=(count, BODIES, 2))
    q -= q.mean(1, keepdims=True)
    p -= p.mean(1, keepdims=True)
    q2, p2 = integrate(q, p, HORIZON)
    pack = lambda a, b: np.concatenate([a, b], -1).reshape(count, -1)
    return jnp.asarray(pack(q, p)), jnp.asarray(pack(q2, p2))


class Surrogate:
    def __init__(self, size, width=256, depth=3, seed=0):
        sizes = [size] + [width] * depth + [size]
        rng = np.random.default_rng(seed)
        self.params = [(jnp.asarray(rng.normal(size=(a, b)) / np.sqrt(a)), jnp.zeros(b))
                       for a, b in zip(sizes[:-1], sizes[1:])]
        self.m = jax.tree.map(jnp.zeros_like, self.params)
        self.v = jax.tree.map(jnp.zeros_like, self.params)
        self.t = 0

    @staticmethod
    def predict(params, x):
        h = x
        for w, b in params[:-1]:
            h = jnp.tanh(h @ w + b)
        w, b = params[-1]
        return x + h @ w + b

    @staticmethod
    def loss(params, x, y):
        return jnp.mean((Surrogate.predict(params, x) - y) ** 2)

    def fit_batch(self, x, y):
        self.t += 1
        self.params, self.m, self.v, loss = adam_step(self.params, self.m, self.v, self.t, x, y)
        return loss


@jax.jit
def adam_step(params, m, v, t, x, y, lr=1e-3):
    loss, g = jax.value_and_grad(Surrogate.loss)(params, x, y)
    m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
    v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
    rate = lr * jnp.sqrt(1 - 0.999 ** t) / (1 - 0.9 ** t)
    params = jax.tree.map(lambda p, a, b: p - rate * a / (jnp.sqrt(b) + 1e-8), params, m, v)
    return params, m, v, loss


def main():
    x, y = make_pairs(4000)
    model = Surrogate(x.shape[1])
    rng = np.random.default_rng(10)
    meter, step = Meter(), 0
    while True:
        rows = rng.integers(0, len(x), 256)
        loss = model.fit_batch(x[rows], y[rows])
        step += 1
        if step % 200 == 0:
            print(f"step {step} mean squared error {float(loss):.5f}")
        jax.block_until_ready(loss)
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
