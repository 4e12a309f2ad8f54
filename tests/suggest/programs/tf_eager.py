"""A training step runs eagerly."""

import tensorflow as tf


def train(weights, inputs):
    with tf.GradientTape() as tape:
        hidden = inputs
        for weight in weights:
            hidden = tf.nn.relu(hidden @ weight)
        loss = tf.reduce_mean(tf.square(hidden))
    for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
        weight.assign_sub(0.01 * gradient)
    return loss


def run():
    tf.random.set_seed(0)
    weights = [tf.Variable(tf.random.normal((8, 8))) for _ in range(4)]
    inputs = tf.random.normal((16, 8))
    return [train(weights, inputs).numpy().item() for _ in range(3)]
