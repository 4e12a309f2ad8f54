"""Fit branch lengths and amino acid frequencies of a phylogenetic tree by its likelihood."""
import argparse
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

STATES = 20


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


def rate_matrix(logits, exchange):
    """A reversible process, scaled to one substitution in a unit of time."""
    pi = jax.nn.softmax(logits)
    q = exchange * pi[None, :]
    q = q - jnp.diag(jnp.sum(q, axis=1))
    return q / -jnp.sum(pi * jnp.diag(q)), pi


def transition_matrices(q, pi, lengths):
    """The probabilities of all substitutions along each branch."""
    return jax.vmap(lambda t: jax.scipy.linalg.expm(q * t))(lengths)


def make_tree(rng, leaves):
    """Random joins: for each inner node its two children, in the order of pruning."""
    active, joins, node = list(range(leaves)), [], leaves
    while len(active) > 1:
        a, b = rng.choice(len(active), 2, replace=False)
        left, right = active[a], active[b]
        active = [n for n in active if n not in (left, right)] + [node]
        joins.append((left, right))
        node += 1
    return joins


def negative_log_likelihood(params, exchange, alignment, joins):
    """Felsenstein's pruning, for all sites of the alignment."""
    q, pi = rate_matrix(params["frequencies"], exchange)
    p = transition_matrices(q, pi, jnp.exp(params["lengths"]))
    partial_of = {i: alignment[i] for i in range(alignment.shape[0])}
    scale = 0.0
    for parent, (left, right) in enumerate(joins, start=alignment.shape[0]):
        value = (partial_of[left] @ p[left].T) * (partial_of[right] @ p[right].T)
        top = jnp.max(value, axis=1, keepdims=True)
        scale = scale + jnp.log(top[:, 0])
        partial_of[parent] = value / top
    root = partial_of[alignment.shape[0] + len(joins) - 1]
    return -jnp.mean(jnp.log(root @ pi) + scale)


def make_alignment(rng, joins, leaves, sites):
    """Sequences that evolve from the root with substitutions at random."""
    sequence = {leaves + len(joins) - 1: rng.integers(0, STATES, sites)}
    for parent in range(leaves + len(joins) - 1, leaves - 1, -1):
        for child in joins[parent - leaves]:
            change = rng.random(sites) < 0.15
            sequence[child] = np.where(change, rng.integers(0, STATES, sites), sequence[parent])
    return np.stack([sequence[i] for i in range(leaves)])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--leaves", type=int, default=20)
    parser.add_argument("--sites", type=int, default=200)
    parser.add_argument("--lr", type=float, default=0.05)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    joins = make_tree(rng, args.leaves)
    sequences = make_alignment(rng, joins, args.leaves, args.sites * 20)
    exchange = rng.gamma(1.0, 1.0, (STATES, STATES)).astype(np.float32)
    exchange = jnp.asarray(exchange + exchange.T)
    params = {
        "lengths": jnp.full(2 * args.leaves - 2, np.log(0.1), jnp.float32),
        "frequencies": jnp.asarray(rng.normal(0, 0.1, STATES), jnp.float32),
    }

    @partial(jax.jit, donate_argnums=0)
    def step(params, chosen):
        alignment = jax.nn.one_hot(chosen, STATES)
        value, grads = jax.value_and_grad(negative_log_likelihood)(params, exchange, alignment, joins)
        return jax.tree_util.tree_map(lambda p, g: p - args.lr * g, params, grads), value

    meter = Meter()
    while True:
        columns = rng.integers(0, sequences.shape[1], args.sites)
        params, value = step(params, sequences[:, columns])
        value = float(value)
        if meter.count % 20 == 0:
            print(f"step {meter.count} loss {value:.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
