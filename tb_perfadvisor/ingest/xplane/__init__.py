"""Reads XSpace profiles (`*.xplane.pb`) of TensorFlow, JAX and PyTorch/XLA."""
