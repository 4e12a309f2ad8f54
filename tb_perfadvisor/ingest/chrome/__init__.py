"""Reads Chrome exports of TensorFlow's and JAX's profilers if there is no xplane."""
