"""The Chrome exports of TensorFlow's and JAX's profilers, read where there is no xplane."""

from tb_perfadvisor.ingest.chrome.processes import has_known_process
from tb_perfadvisor.ingest.chrome.reader import read_chrome

__all__ = ["has_known_process", "read_chrome"]
