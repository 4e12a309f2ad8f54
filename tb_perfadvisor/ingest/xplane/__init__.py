"""Files of XSpaces, `HOST.xplane.pb`, of TensorFlow, JAX and PyTorch/XLA."""
