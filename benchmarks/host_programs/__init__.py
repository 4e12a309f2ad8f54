"""Programs of JAX, TensorFlow and Keras on the CPU, to judge what is said of the host's side."""
