"""Names the operations that compute a Keras model's metrics, so that profiles tell them apart.

Names of operations are for people: what is computed stays the same.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import Any

SCOPE = "perfadvisor_metrics"


def name_metrics(metrics: Any) -> None:
    """Give what a class of Keras does in `update_state` a name.

    Args:
        metrics: `keras.src.trainers.compile_utils.CompileMetrics`.
    """
    update = metrics.update_state

    @wraps(update)
    def named(compiled: Any, *arguments: Any, **keywords: Any) -> Any:
        with _scope():
            return update(compiled, *arguments, **keywords)

    metrics.update_state = named


def _scope() -> AbstractContextManager[Any]:
    """A name scope of Keras's backend; PyTorch has none."""
    backend: Any = sys.modules.get("keras.src.backend")
    name = backend.backend() if backend is not None else ""
    framework: Any = sys.modules.get(name)
    if framework is None or name not in ("tensorflow", "jax"):
        return nullcontext()
    scope: AbstractContextManager[Any] = (
        framework.name_scope(SCOPE) if name == "tensorflow" else framework.named_scope(SCOPE)
    )
    return scope
