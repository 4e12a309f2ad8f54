"""The Chrome exports of TensorFlow's and JAX's profilers, read where there is no xplane."""
