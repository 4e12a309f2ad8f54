"""Soil moisture maps from radar channels: patches in, one value per patch out (JAX, plain SGD with momentum)."""
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


PATCH, CHANNELS, BATCH = 8, 6, 256


def radar_patches(count, seed):
    rng = np.random.default_rng(seed)
    moisture = rng.beta(2, 3, count).astype(np.float32)
    rough = rng.random((count, 1, 1, 1))
    gain = rng.normal(0, 1, (CHANNELS,)) * 0.5 + 1
    speckle = rng.gamma(4, 0.25, (count, PATCH, PATCH, CHANNELS))
    x = np.log(speckle * (0.2 + moisture[:, None, None, None] * gain ** 2 + 0.3 * rough))
    return x.reshape(count, -1).astype(np.float32), moisture


def glorot(key, a, b):
    return jax.random.normal(key, (a, b)) * (2 / (a + b)) ** 0.5


def init(key, sizes):
    keys = jax.random.split(key, len(sizes))
    return [(glorot(k, a, b), jnp.zeros(b)) for k, a, b in zip(keys, sizes[:-1], sizes[1:])]


def predict(params, x):
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b)
    w, b = params[-1]
    return jax.nn.sigmoid(x @ w + b)[:, 0]


def loss_fn(params, x, y):
    return jnp.mean(jnp.square(predict(params, x) - y))


@jax.jit
def update(params, velocity, x, y, lr):
    loss, grads = jax.value_and_grad(loss_fn)(params, x, y)
    velocity = jax.tree.map(lambda v, g: 0.9 * v - lr * g, velocity, grads)
    params = jax.tree.map(jnp.add, params, velocity)
    return params, velocity, loss


@jax.jit
def rmse(params, x, y):
    return jnp.sqrt(loss_fn(params, x, y))


def main():
    x, y = radar_patches(20_000, seed=1)
    test_x, test_y = radar_patches(1000, seed=2)
    params = init(jax.random.PRNGKey(0), [x.shape[1], 512, 512, 256, 1])
    velocity = jax.tree.map(jnp.zeros_like, params)
    rng = np.random.default_rng(0)
    history = []
    meter, going, epoch = Meter(), True, 0
    while going:
        order = rng.permutation(len(x))
        for start in range(0, len(x) - BATCH + 1, BATCH):
            rows = order[start:start + BATCH]
            lr = 0.05 * 0.999 ** len(history)
            params, velocity, loss = update(params, velocity, jnp.array(x[rows]), jnp.array(y[rows]), lr)
            params = jax.block_until_ready(params)
            history.append(float(loss))
            going = meter.step()
            if not going:
                break
        epoch += 1
        print(f"epoch {epoch} loss {np.mean(history[-50:]):.5f} test rmse {float(rmse(params, test_x, test_y)):.4f}")
    meter.report()


if __name__ == "__main__":
    main()
