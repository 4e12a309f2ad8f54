"""Adam runs outside of any jit."""

import jax
import jax.numpy as jnp


def loss_of(parameters, inputs):
    hidden = inputs
    for weight in parameters:
        hidden = jnp.tanh(hidden @ weight)
    return jnp.mean(jnp.square(hidden))


slopes = jax.jit(jax.grad(loss_of))


def adam(parameters, gradients, state, number):
    updated, moments = [], []
    for value, slope, (first, second) in zip(parameters, gradients, state, strict=True):
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * jnp.square(slope)
        scaled = first / (1.0 - 0.9**number)
        root = jnp.sqrt(second / (1.0 - 0.999**number))
        updated.append(value - 0.001 * scaled / (root + 1e-8))
        moments.append((first, second))
    return updated, moments


def step(parameters, state, inputs, number):
    return adam(parameters, slopes(parameters, inputs), state, float(number))


def run():
    keys = jax.random.split(jax.random.key(0), 4)
    parameters = [jax.random.normal(key, (8, 8)) for key in keys]
    state = [(jnp.zeros_like(value), jnp.zeros_like(value)) for value in parameters]
    inputs = jnp.ones((16, 8))
    for number in range(1, 4):
        parameters, state = step(parameters, state, inputs, number)
    return [float(value.sum()) for value in parameters]
