import statistics
import time

import jax
import jax.numpy as jnp


@jax.jit
def gradients_of(w, x):
    return jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)


@jax.jit
def update(w, g):
    return w - 0.1 * g


key = jax.random.key(0)
w, x = jax.random.normal(key, (512, 512)), jax.random.normal(key, (256, 512))
ends = []
for _ in range(600):
    g = gradients_of(w, x)
    w = update(w, g).block_until_ready()
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
