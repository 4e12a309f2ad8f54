"""Reads XSpaces: the model of TensorFlow's, JAX's and XLA's profilers, from files or exports."""
