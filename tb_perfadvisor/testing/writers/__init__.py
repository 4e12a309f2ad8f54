"""Writes traces as files that our readers read back, as far as each format can represent them."""

from tb_perfadvisor.testing.writers.chrome import write_chrome
from tb_perfadvisor.testing.writers.kineto import write_kineto
from tb_perfadvisor.testing.writers.nsight import write_nsight
from tb_perfadvisor.testing.writers.xplane import write_xplane

__all__ = ["write_chrome", "write_kineto", "write_nsight", "write_xplane"]
