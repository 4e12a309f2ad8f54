"""The key numbers of a report on a log of torch.compile alone."""

from __future__ import annotations

from tb_perfadvisor.contract import model
from tb_perfadvisor.trace.compile_log import CompileLog


def compile_log_numbers(log: CompileLog) -> list[model.KeyNumber]:
    """How long the compiler worked, how often it broke off or began again, and its caches."""
    hits = sum(cache.hits for cache in log.caches)
    misses = sum(cache.misses for cache in log.caches)
    unused = sum(cache.bypasses for cache in log.caches)
    count = len(log.compilations)
    return [
        _number(
            "compile-time",
            "Compile time",
            log.known_ns,
            "ns",
            [f"{count:,} compilation{'' if count == 1 else 's'}"],
            "What PyTorch states for all compilations, with backward graphs.",
        ),
        _number(
            "graph-breaks",
            "Graph breaks",
            len(log.breaks),
            "count",
            [],
            "How often the compiler broke off, because it could not trace a line.",
        ),
        _number(
            "recompilations",
            "Recompilations",
            sum(each.is_recompilation for each in log.compilations),
            "count",
            [],
            "How often a function was compiled again, because what an earlier version relies on "
            "no longer held.",
        ),
        _number(
            "cache-hits",
            "Cache hits",
            hits if log.caches else None,
            "count",
            [f"{misses:,} {'miss' if misses == 1 else 'misses'}, {unused:,} not used"]
            if log.caches
            else ["no use of a cache logged"],
            "How often a cache had the compiled code of a graph. Not used: the graph could not be "
            "cached.",
        ),
    ]


def _number(
    id: str, label: str, value: int | None, unit: str, notes: list[str], definition: str
) -> model.KeyNumber:
    return model.KeyNumber(
        id=id,
        label=label,
        value=value,
        unit=unit,
        of="",
        notes=notes,
        share=None,
        definition=definition,
    )
