import statistics
import time
from functools import partial

import jax
import jax.numpy as jnp


def loss_of(params, x, y):
    h = jnp.tanh(x @ params["w1"])
    return jnp.mean((h @ params["w2"] - y) ** 2)


@partial(jax.jit, donate_argnums=0)
def train_step(params, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, gradients), loss


key = jax.random.key(0)
params = {"w1": jax.random.normal(key, (256, 512)), "w2": jax.random.normal(key, (512, 1))}
x, y = jax.random.normal(key, (512, 256)), jax.random.normal(key, (512, 1))
ends = []
for _ in range(600):
    params, loss = train_step(params, x, y)
    float(loss)
    ends.append(time.perf_counter())
print("own step:", statistics.median(b - a for a, b in zip(ends, ends[1:])) * 1e3, "ms")
