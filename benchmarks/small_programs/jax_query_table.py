"""Learn which product clicks follow a search query, with hashed n-gram vectors."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np

ROWS, DIM, GRAMS, BATCH, PRODUCTS = 400_000, 16, 12, 256, 500


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

def init_state(rng):
    return {
        "table": jnp.asarray(rng.normal(0, 0.1, (ROWS, DIM)), jnp.float32),
        "project": jnp.asarray(rng.normal(0, 0.25, (DIM, 64)), jnp.float32),
        "classify": jnp.asarray(rng.normal(0, 0.12, (64, PRODUCTS)), jnp.float32),
    }


def loss_fn(vectors, project, classify, clicked):
    """Vectors are the looked-up rows: batch x grams x dim."""
    h = jax.nn.relu(vectors.mean(1) @ project)
    logits = h @ classify
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), clicked[:, None], 1).mean()


@jax.jit
def train_step(state, grams, clicked, rate):
    vectors = state["table"][grams]
    loss, (by_vector, by_project, by_classify) = jax.value_and_grad(loss_fn, (0, 1, 2))(
        vectors, state["project"], state["classify"], clicked)
    state = {
        "table": state["table"].at[grams].add(-rate * GRAMS * by_vector),
        "project": state["project"] - rate * by_project,
        "classify": state["classify"] - rate * by_classify,
    }
    return state, loss


class ClickLog:
    """Queries as hashed n-grams, and the product clicked after each."""

    def __init__(self, rng, count=30_000):
        self.clicked = rng.integers(0, PRODUCTS, count).astype(np.int32)
        favourite = rng.integers(0, ROWS, (PRODUCTS, 40)).astype(np.int32)
        own = favourite[self.clicked[:, None], rng.integers(0, 40, (count, GRAMS))]
        other = rng.integers(0, ROWS, (count, GRAMS)).astype(np.int32)
        self.grams = np.where(rng.random((count, GRAMS)) < 0.7, own, other)
        self.rng = rng

    def batch(self):
        pick = self.rng.integers(0, len(self.clicked), BATCH)
        return self.grams[pick], self.clicked[pick]


def main():
    rng = np.random.default_rng(0)
    state = init_state(rng)
    log = ClickLog(rng)
    meter = Meter()
    smooth = None
    while True:
        grams, clicked = log.batch()
        state, loss = train_step(state, grams, clicked, 0.5)
        loss = float(loss)
        jax.block_until_ready(state)
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {smooth:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
