"""Prices a basket option on ten assets driven by two factors with a physics-informed network."""
import os
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

SMOKE = bool(os.environ.get("SMOKE"))
ASSETS, FACTORS = 10, 2
HIDDEN, DEPTH, POINTS = (16, 2, 32) if SMOKE else (256, 4, 8192)
RATE, STRIKE = 0.03, 1.0
STATE = {}

# volatility of each asset by factor (two common drivers, no noise of their own)
LOADINGS = np.stack([np.linspace(0.1, 0.3, ASSETS), 0.2 * np.cos(np.arange(ASSETS))], axis=1).astype(np.float32)
COVARIANCE = LOADINGS @ LOADINGS.T


def wait():
    jax.block_until_ready(STATE)


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
        if self.mark is None and self.last - self.start > 0.3 * self.seconds:
            wait()
            self.mark = (self.count, time.perf_counter())
        return self.last - self.start < self.seconds

    def report(self):
        wait()
        count, since = self.mark
        print(f"STEPS {self.count - count} SECONDS {time.perf_counter() - since:.3f}")


def init(key):
    sizes = [ASSETS + 1] + [HIDDEN] * DEPTH + [1]
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        key, sub = jax.random.split(key)
        layers.append({"w": jax.random.normal(sub, (a, b)) / np.sqrt(a), "b": jnp.zeros(b)})
    return layers


def payoff(x):
    """Call on the mean of the assets; x are log prices."""
    return jax.nn.softplus(20 * (jnp.exp(x).mean() - STRIKE)) / 20


def value(params, t, x):
    """Option value with time t to go; right at t = 0 whatever the network says."""
    h = jnp.concatenate([t[None], x])
    for layer in params[:-1]:
        h = jnp.tanh(h @ layer["w"] + layer["b"])
    return payoff(x) + t * (h @ params[-1]["w"] + params[-1]["b"])[0]


def residual(params, t, x):
    """Left-hand side of the Black-Scholes equation in log prices and time to go."""
    v, (v_t, v_x) = jax.value_and_grad(value, argnums=(1, 2))(params, t, x)
    drift = RATE - 0.5 * np.diag(COVARIANCE)
    v_xx = jax.hessian(value, argnums=2)(params, t, x)
    diffusion = 0.5 * jnp.sum(COVARIANCE * v_xx)
    return v_t - diffusion - drift @ v_x + RATE * v


def loss(params, t, x):
    return jnp.mean(jax.vmap(residual, (None, 0, 0))(params, t, x) ** 2)


def adam(params, grads, state, rate):
    step = state["step"] + 1
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, state["v"], grads)
    a, b = 1 - 0.9**step, 1 - 0.999**step
    params = jax.tree.map(lambda p, m, v: p - rate * (m / a) / (jnp.sqrt(v / b) + 1e-8), params, m, v)
    return params, {"m": m, "v": v, "step": step}


@partial(jax.jit, donate_argnums=(0, 1))
def update(params, state, key):
    """One step on fresh collocation points."""
    key, k1, k2 = jax.random.split(key, 3)
    t = jax.random.uniform(k1, (POINTS,))
    x = 0.3 * jax.random.normal(k2, (POINTS, ASSETS))
    error, grads = jax.value_and_grad(loss)(params, t, x)
    params, state = adam(params, grads, state, 1e-3)
    return params, state, key, error


def main():
    params = init(jax.random.key(0))
    state = {
        "m": jax.tree.map(jnp.zeros_like, params),
        "v": jax.tree.map(jnp.zeros_like, params),
        "step": jnp.zeros(()),
    }
    key = jax.random.key(1)
    at_the_money = jax.jit(value)
    meter = Meter()
    step = 0
    while True:
        params, state, key, error = update(params, state, key)
        STATE["error"] = error
        step += 1
        if step % 25 == 0:
            price = at_the_money(params, jnp.ones(()), jnp.zeros(ASSETS))
            print(f"step {step}: residual {float(error):.6f}, price at the money {float(price):.5f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
