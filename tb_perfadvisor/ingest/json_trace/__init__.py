"""JSON in Chrome's trace format, as Kineto and the exporters of TensorFlow and JAX write it."""
