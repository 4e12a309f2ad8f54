"""The reader of PyTorch's traces (Kineto, Chrome trace JSON)."""

from tb_perfadvisor.ingest.kineto.header import rank_of_name
from tb_perfadvisor.ingest.kineto.reader import read_kineto

__all__ = ["rank_of_name", "read_kineto"]
