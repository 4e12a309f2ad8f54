"""Which process of a distributed program this is."""

from __future__ import annotations

import os
import socket


def rank_of_environment() -> int | None:
    """This process's rank as launchers tell it; None if no launcher says so."""
    for name in ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return None


def rank_of_torch() -> int:
    """The rank in PyTorch's process group, or the launcher's; 0 in a program of one process."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        rank: int = torch.distributed.get_rank()
        return rank
    return rank_of_environment() or 0


def worker_name_of_torch() -> str:
    """`rank3` in a distributed program, otherwise `host_4711` (host and process)."""
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return f"rank{torch.distributed.get_rank()}"
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ:
        return f"rank{os.environ['RANK']}"
    return f"{socket.gethostname()}_{os.getpid()}"


def worker_name_of_rank(rank: int) -> str:
    """`rank3` in a distributed program, otherwise `host_4711` (host and process)."""
    if rank or rank_of_environment() is not None:
        return f"rank{rank}"
    return f"{socket.gethostname()}_{os.getpid()}"
