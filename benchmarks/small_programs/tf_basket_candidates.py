"""Next-item training for grocery baskets with sampled negative candidates."""
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
import numpy as np
import tensorflow as tf

tf.random.set_seed(0)
ITEMS, DIM, BASKET, CANDIDATES, BATCH = 8_000, 32, 15, 40, 64


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

class BasketModel(tf.Module):
    """A basket vector scored against item vectors."""

    def __init__(self):
        super().__init__()
        start = tf.random_normal_initializer(stddev=0.1, seed=1)
        self.items = tf.Variable(start((ITEMS, DIM)))
        self.targets = tf.Variable(start((ITEMS, DIM)))
        self.bias = tf.Variable(tf.zeros(ITEMS))
        self.hidden = tf.Variable(tf.random_normal_initializer(stddev=0.15, seed=2)((DIM, 64)))
        self.project = tf.Variable(tf.random_normal_initializer(stddev=0.15, seed=3)((64, DIM)))

    def basket(self, basket):
        x = tf.reduce_mean(tf.gather(self.items, basket), axis=1)
        return tf.nn.relu(x @ self.hidden) @ self.project + x

    def score(self, basket, candidates):
        """Scores of each basket's own candidates: batch x candidates."""
        scores = tf.matmul(self.basket(basket), self.targets, transpose_b=True) + self.bias
        return tf.gather(scores, candidates, batch_dims=1)


def apply_gradients(variables, gradients, rate):
    for variable, gradient in zip(variables, gradients):
        if isinstance(gradient, tf.IndexedSlices):
            variable.scatter_sub(tf.IndexedSlices(rate * gradient.values, gradient.indices))
        else:
            variable.assign_sub(rate * gradient)


def make_step(model, rate):
    @tf.function
    def step(basket, candidates):
        """The first candidate is the item that was bought."""
        with tf.GradientTape() as tape:
            scores = model.score(basket, candidates)
            labels = tf.zeros(tf.shape(scores)[0], tf.int32)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        variables = model.trainable_variables
        apply_gradients(variables, tape.gradient(loss, variables), rate)
        return loss

    return step


def make_baskets(rng, count=20_000):
    """Baskets drawn from themes; the bought item belongs to the theme."""
    themes = rng.integers(0, ITEMS, (200, 60)).astype(np.int32)
    theme = rng.integers(0, 200, count)
    baskets = themes[theme[:, None], rng.integers(0, 60, (count, BASKET))]
    return baskets, themes[theme, rng.integers(0, 60, count)]


def main():
    rng = np.random.default_rng(0)
    baskets, bought = make_baskets(rng)
    step = make_step(BasketModel(), rate=1.0)
    meter = Meter()
    while True:
        pick = rng.integers(0, len(baskets), BATCH)
        negatives = rng.integers(0, ITEMS, (BATCH, CANDIDATES - 1)).astype(np.int32)
        candidates = np.concatenate([bought[pick][:, None], negatives], axis=1)
        loss = float(step(tf.constant(baskets[pick]), tf.constant(candidates)))
        if meter.count % 50 == 0:
            print(f"step {meter.count} loss {loss:.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
