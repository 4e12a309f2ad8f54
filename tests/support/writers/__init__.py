"""Writes traces as files that our readers read back, as far as each format can represent them."""

from tests.support.writers.chrome import write_chrome
from tests.support.writers.kineto import write_kineto
from tests.support.writers.nsight import write_nsight
from tests.support.writers.xplane import write_xplane

__all__ = ["write_chrome", "write_kineto", "write_nsight", "write_xplane"]
