import statistics
import time

import jax
import jax.numpy as jnp


@jax.jit
def epoch(w, xs):
    def body(w, x):
        return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), None

    return jax.lax.scan(body, w, xs)[0]


key = jax.random.key(0)
w, xs = jax.random.normal(key, (256, 256)), jax.random.normal(key, (32, 64, 256))
ends = []
for _ in range(40):
    w = epoch(w, xs).block_until_ready()
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
