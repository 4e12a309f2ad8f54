"""The graphs of TensorFlow's compiled functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final

from tb_perfadvisor.instrument.user_code import is_user_file, shown_path
from tb_perfadvisor.machine.facts import Observed

_MOST_VARIANTS: Final = 2
"""For other shapes, the graph is nearly the same."""
_MOST_OBSERVED: Final = 32


def observed_in_graphs(
    function: Any, of_graph: Callable[[Any], Iterable[Observed]]
) -> list[Observed]:
    """What is found in the graphs of a `tf.function` that has been called."""
    found: dict[str, Observed] = {}
    with suppress(Exception):
        for concrete in function._list_all_concrete_functions()[-_MOST_VARIANTS:]:
            for graph in _graphs(concrete.graph):
                found |= {each.operator: each for each in of_graph(graph)}
    return list(found.values())[:_MOST_OBSERVED]


def _graphs(graph: Any) -> Iterator[Any]:
    """A function's graph, and those of the functions that it calls."""
    yield graph
    for inner in getattr(graph, "_functions", {}).values():
        with suppress(AttributeError):
            yield inner.graph


def place_of(operation: Any) -> tuple[str, int, str]:
    """The innermost line of the user's code that made an operation."""
    for frame in reversed(operation.traceback or ()):
        if is_user_file(frame.filename):
            return shown_path(frame.filename), frame.lineno or 1, frame.name
    return "", 1, ""
