"""The number of the step is a static argument: each step is compiled anew."""

import jax
import jax.numpy as jnp


def loss_of(parameters, inputs):
    hidden = inputs
    for weight in parameters:
        hidden = jax.nn.relu(hidden @ weight)
    return jnp.mean(jnp.square(hidden))


def update(parameters, inputs, number):
    inputs = inputs * (1.0 + 0.01 * number)  # a little stronger with each step
    loss, gradients = jax.value_and_grad(loss_of)(parameters, inputs)
    return [value - 0.01 * slope for value, slope in zip(parameters, gradients, strict=True)], loss


train_step = jax.jit(update, static_argnums=2)


def run():
    keys = jax.random.split(jax.random.key(0), 4)
    parameters = [jax.random.normal(key, (8, 8)) for key in keys]
    inputs = jnp.ones((16, 8))
    losses = []
    for number in range(3):
        parameters, loss = train_step(parameters, inputs, number)
        losses.append(float(loss))
    return losses
