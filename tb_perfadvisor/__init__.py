"""Performance advisor for PyTorch, TensorFlow and JAX profiles, as a TensorBoard tab."""
