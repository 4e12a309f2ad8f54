"""Turn option quotes into implied volatilities and fit a smile to each expiry."""
import os
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

EXPIRIES, STRIKES, ITERATIONS = 40, 160, 50


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

@jax.jit
def price_and_vega(log_strike, expiry, vol):
    """Undiscounted call price over the forward, and its sensitivity."""
    deviation = vol * jnp.sqrt(expiry)
    d1 = -log_strike / deviation + 0.5 * deviation
    price = norm.cdf(d1) - jnp.exp(log_strike) * norm.cdf(d1 - deviation)
    return price, norm.pdf(d1) * jnp.sqrt(expiry)


def implied_vol(quotes, log_strike, expiry):
    """Newton's method on all quotes together."""

    def improve(vol):
        price, vega = price_and_vega(log_strike, expiry, vol)
        move = (price - quotes) / jnp.maximum(vega, 1e-4)
        return jnp.clip(vol - move, 0.02, 2.0)

    start = jnp.full_like(quotes, 0.3)
    return jax.lax.fori_loop(0, ITERATIONS, lambda _, vol: improve(vol), start)


def fit_smile(vol, log_strike):
    """A weighted quadratic in log-strike per expiry."""
    basis = jnp.stack([jnp.ones_like(log_strike), log_strike, log_strike ** 2], -1)
    weight = jnp.exp(-(log_strike / 0.2) ** 2)[..., None]
    normal = jnp.einsum("esi,esj->eij", basis * weight, basis) + 1e-6 * jnp.eye(3)
    right = jnp.einsum("esi,es->ei", basis * weight, vol)
    return jnp.linalg.solve(normal, right[..., None])[..., 0]


@jax.jit
def calibrate(quotes, log_strike, expiry):
    vol = implied_vol(quotes, log_strike, expiry)
    smile = fit_smile(vol, log_strike)
    basis = jnp.stack([jnp.ones_like(log_strike), log_strike, log_strike ** 2], -1)
    error = jnp.sqrt(((jnp.einsum("esi,ei->es", basis, smile) - vol) ** 2).mean())
    return smile, error


def make_quotes(rng, ticks=50):
    expiry = np.linspace(0.25, 2.0, EXPIRIES).astype(np.float32)[:, None]
    log_strike = (np.linspace(-0.25, 0.25, STRIKES)[None] * np.sqrt(expiry)).astype(np.float32)
    quotes = []
    for _ in range(ticks):
        level, skew, curve = rng.uniform(0.18, 0.3), rng.uniform(-0.15, 0.0), rng.uniform(0.1, 0.3)
        vol = level + skew * log_strike + curve * log_strike ** 2 + rng.normal(0, 0.002, log_strike.shape)
        quotes.append(np.asarray(price_and_vega(log_strike, expiry, vol.astype(np.float32))[0]))
    return quotes, log_strike, np.broadcast_to(expiry, log_strike.shape)


def main():
    quotes, log_strike, expiry = make_quotes(np.random.default_rng(0))
    log_strike, expiry = jnp.asarray(log_strike), jnp.asarray(expiry)
    meter = Meter()
    while True:
        smile, error = calibrate(quotes[meter.count % len(quotes)], log_strike, expiry)
        level = float(smile[:, 0].mean())
        if meter.count % 50 == 0:
            print(f"step {meter.count} level {level:.4f} error {float(error):.4f}")
        if not meter.step():
            break
    meter.report()


if __name__ == "__main__":
    main()
