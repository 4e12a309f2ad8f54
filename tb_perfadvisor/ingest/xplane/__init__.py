"""XSpace profiles (`*.xplane.pb`), as TensorFlow, JAX and PyTorch/XLA record them."""

from tb_perfadvisor.ingest.xplane.reader import looks_like_xplane, read_xplane

__all__ = ["looks_like_xplane", "read_xplane"]
