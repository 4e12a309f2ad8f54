"""Trains with operators that are dispatched one by one, and records steps: train.py DIRECTORY."""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp


def loss_of(parameters, inputs):
    hidden = inputs
    for weight in parameters:
        hidden = jax.nn.relu(hidden @ weight)
    return jnp.mean(jnp.square(hidden))


def update(parameters, inputs):
    slopes = jax.grad(loss_of)(parameters, inputs)
    return [value - 0.01 * slope for value, slope in zip(parameters, slopes, strict=True)]


def main(directory):
    keys = jax.random.split(jax.random.key(0), 24)
    parameters = [0.05 * jax.random.normal(key, (64, 64)) for key in keys]
    inputs = jnp.ones((512, 64))
    for _ in range(5):
        parameters = jax.block_until_ready(update(parameters, inputs))
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    with jax.profiler.trace(directory, profiler_options=options):
        for number in range(10):
            with jax.profiler.StepTraceAnnotation("train", step_num=number):
                parameters = jax.block_until_ready(update(parameters, inputs))


if __name__ == "__main__":
    main(sys.argv[1])
