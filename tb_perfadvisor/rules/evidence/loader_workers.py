"""What worker processes of a DataLoader did, as a table."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals.input.loader_workers import WorkerBatches


def worker_batches_table(workers: WorkerBatches) -> Table:
    """One row for each batch, in the order in which the program received them."""
    read_bytes = [size if size >= 0 else None for size in workers.read_bytes.tolist()]
    return Table(
        "Batches of the workers",
        (
            Column("wall_ns", "Time", "ns"),
            Column("cpu_ns", "Processor time", "ns"),
            Column("files", "Files opened", "count"),
            Column("read_bytes", "Read", "bytes"),
        ),
        tuple(
            zip(
                workers.wall_ns.tolist(),
                workers.cpu_ns.tolist(),
                workers.files.tolist(),
                read_bytes,
                strict=True,
            )
        ),
    )
