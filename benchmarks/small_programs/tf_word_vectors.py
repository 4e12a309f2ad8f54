"""CBOW word vectors with sampled negatives."""
import argparse
import os
import time

import numpy as np
import tensorflow as tf


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

def make_corpus(length, vocab):
    rng = np.random.default_rng(0)
    topics = np.repeat(rng.integers(0, 20, length // 50), 50)
    return ((rng.zipf(1.3, len(topics)) * 20 + topics) % vocab).astype(np.int32)


class WordVectors(tf.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.vocab = vocab
        self.inputs = tf.Variable(tf.random.normal((vocab, dim), stddev=0.1))
        self.outputs = tf.Variable(tf.random.normal((vocab, dim), stddev=0.1))

    def context(self, ids):
        rows = tf.matmul(tf.one_hot(ids, self.vocab), self.inputs)
        return tf.reduce_mean(rows, axis=1)

    def score(self, h, ids):
        return tf.einsum("bd,bkd->bk", h, tf.gather(self.outputs, ids))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--vocab", type=int, default=1500)
    parser.add_argument("--dim", type=int, default=48)
    parser.add_argument("--window", type=int, default=1)
    parser.add_argument("--negatives", type=int, default=24)
    parser.add_argument("--batch-size", type=int, default=192)
    parser.add_argument("--seconds", type=float, default=40)
    args = parser.parse_args()
    tf.random.set_seed(0)
    corpus = make_corpus(500_000, args.vocab)
    offsets = np.array([o for o in range(-args.window, args.window + 1) if o])
    model = WordVectors(args.vocab, args.dim)

    @tf.function
    def train_step(context, centre):
        noise = tf.random.uniform((args.batch_size, args.negatives), 0, args.vocab, tf.int32)
        with tf.GradientTape() as tape:
            h = model.context(context)
            scores = model.score(h, tf.concat([centre[:, None], noise], axis=1))
            target = tf.concat([tf.ones((args.batch_size, 1)), tf.zeros((args.batch_size, args.negatives))], axis=1)
            loss = tf.reduce_mean(tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(target, scores), axis=1))
        grads = tape.gradient(loss, model.trainable_variables)
        for variable, grad in zip(model.trainable_variables, grads):
            variable.assign_sub(1.0 * tf.convert_to_tensor(grad))
        return loss

    rng = np.random.default_rng(1)
    meter = Meter(args.seconds)
    running, step = True, 0
    while running:
        at = rng.integers(args.window, len(corpus) - args.window, args.batch_size)
        loss = train_step(tf.constant(corpus[at[:, None] + offsets]), tf.constant(corpus[at]))
        step += 1
        if step % 100 == 0:
            print(f"step {step} loss {float(loss):.4f}")
        running = meter.step()
    meter.report()


if __name__ == "__main__":
    main()
