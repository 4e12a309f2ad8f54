"""Tag particle jets as quark or gluon with a deep-sets network."""
import argparse
import os
import time

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


def make_jets(count, particles, seed=2):
    """Gluon jets are wider and have more, softer particles."""
    rng = np.random.default_rng(seed)
    gluon = rng.random(count) < 0.5
    width = np.where(gluon, 0.25, 0.15)[:, None]
    used = rng.poisson(np.where(gluon, 14, 9)).clip(3, particles)
    pt = np.sort(rng.pareto(np.where(gluon, 3.0, 2.0)[:, None], (count, particles)))[:, ::-1]
    eta, phi = width * rng.standard_normal((2, count, particles))
    mask = np.arange(particles) < used[:, None]
    pt = pt * mask
    pt /= pt.sum(1, keepdims=True)
    features = np.stack([np.log(pt + 1e-6), eta * mask, phi * mask, mask], axis=-1)
    return features.astype(np.float32), gluon.astype(np.float32)


def dense_init(key, inputs, outputs):
    return jax.random.normal(key, (inputs, outputs)) * (2 / inputs) ** 0.5, jnp.zeros(outputs)


def init(key, width):
    k = jax.random.split(key, 5)
    return {
        "phi": [dense_init(k[0], 4, width), dense_init(k[1], width, width)],
        "rho": [dense_init(k[2], width, width), dense_init(k[3], width, 1)],
    }


def forward(params, jets):
    h = jets
    for w, b in params["phi"]:
        h = jax.nn.relu(h @ w + b)
    h = (h * jets[..., 3:]).sum(1) / 8.0
    (w1, b1), (w2, b2) = params["rho"]
    return (jax.nn.relu(h @ w1 + b1) @ w2 + b2)[:, 0]


def loss_fn(params, jets, labels):
    z = forward(params, jets)
    return jnp.mean(jax.nn.softplus(z) - labels * z)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--jets", type=int, default=80_000)
    parser.add_argument("--particles", type=int, default=16)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--lr", type=float, default=0.02)
    args = parser.parse_args()

    jets, labels = map(jnp.asarray, make_jets(args.jets, args.particles))
    test_jets, test_labels = make_jets(2000, args.particles, seed=3)
    params = init(jax.random.PRNGKey(0), args.width)
    momentum = jax.tree.map(jnp.zeros_like, params)

    @jax.jit
    def train_step(params, momentum, key, jets, labels):
        rows = jax.random.choice(key, args.jets, (args.batch,), replace=False)
        loss, grads = jax.value_and_grad(loss_fn)(params, jets[rows], labels[rows])
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
        params = jax.tree.map(lambda p, m: p - args.lr * m, params, momentum)
        return params, momentum, loss

    @jax.jit
    def accuracy(params):
        return jnp.mean((forward(params, test_jets) > 0) == (test_labels > 0.5))

    key = jax.random.PRNGKey(1)
    meter, step = Meter(), 0
    while True:
        key, use = jax.random.split(key)
        params, momentum, loss = train_step(params, momentum, use, jets, labels)
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {float(loss):.4f} accuracy {float(accuracy(params)):.3f}")
        loss.block_until_ready()
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
