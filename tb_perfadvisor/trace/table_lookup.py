"""Look-ups in tables, such as a vocabulary's embedding, in XLA programs."""

from __future__ import annotations

from msgspec import Struct


class TableLookup(Struct, frozen=True):
    """An operation that reads rows of a table by their numbers."""

    module: str
    """Such as `jit_step(19)`."""
    operation: str
    """The instruction that runs it: the fusion, if it is inside one."""
    rows: int
    """Of the table."""
    width: int
    """Numbers in a row."""
    count: int
    """How many rows it reads."""
