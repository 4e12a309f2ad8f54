"""Traces as files: what the readers read back, for what each format can carry."""

from tb_perfadvisor.testing.writers.kineto import write_kineto
from tb_perfadvisor.testing.writers.xplane import write_xplane

__all__ = ["write_kineto", "write_xplane"]
