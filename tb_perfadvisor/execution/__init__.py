"""How work is spread: in this process, over a pool of processes, or over a Dask cluster.

The command line, the Python API and the plugin all use `open_execution`. What is spread is the
reading of files, one task per rank; `ingest` gets a `concurrent.futures.Executor` and does not
know which kind it is.
"""

from tb_perfadvisor.execution.execution import IN_PROCESS, Execution, open_execution
from tb_perfadvisor.execution.limits import Limits, limits_from_environment, memory_limit

__all__ = [
    "IN_PROCESS",
    "Execution",
    "Limits",
    "limits_from_environment",
    "memory_limit",
    "open_execution",
]
