"""XSpace profiles (`*.xplane.pb`), as TensorFlow, JAX and PyTorch/XLA record them."""
