"""What worker processes of a DataLoader did, as a table."""

from __future__ import annotations

from tb_perfadvisor.rules.finding import Column, Table
from tb_perfadvisor.signals.input.loader_workers import WorkerBatches
from tb_perfadvisor.trace.tables import Int64


def worker_batches_table(workers: WorkerBatches) -> Table:
    """One row for each batch, in the order in which the program received them."""
    columns = (
        (Column("wall_ns", "Time", "ns"), workers.wall_ns),
        (Column("cpu_ns", "Processor time", "ns"), workers.cpu_ns),
        (Column("collate_ns", "In collate_fn", "ns"), workers.collate_ns),
        (Column("samples", "Samples", "count"), workers.samples),
        (Column("files", "Files opened", "count"), workers.files),
        (Column("read_bytes", "Read", "bytes"), workers.read_bytes),
    )
    # Older recordings do not tell all of them.
    known = [(column, values) for column, values in columns if (values >= 0).any()]
    return Table(
        "Batches of the workers",
        tuple(column for column, _ in known),
        tuple(zip(*(_cells(values) for _, values in known), strict=True)),
    )


def _cells(values: Int64) -> list[int | None]:
    return [value if value >= 0 else None for value in values.tolist()]
