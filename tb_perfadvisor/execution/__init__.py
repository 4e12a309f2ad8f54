"""How work is spread: in this process, over a pool of processes, or over a Dask cluster.

The command line, the Python API and the plugin all use `open_execution`. What is spread is the
reading of files, one task per rank; `ingest` gets a `concurrent.futures.Executor` and does not
know which kind it is.
"""

from tb_perfadvisor.execution.execution import IN_PROCESS, Execution, open_execution

__all__ = ["IN_PROCESS", "Execution", "open_execution"]
