"""Performance advisor for PyTorch, TensorFlow and JAX profiles, as a TensorBoard tab."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tb_perfadvisor.api.analyses import analyze, analyze_all, load
    from tb_perfadvisor.api.comparisons import compare
    from tb_perfadvisor.notebook import show

__all__ = ["analyze", "analyze_all", "compare", "load", "show"]


def __getattr__(name: str) -> Any:
    """Import the API when first used: TensorBoard loads this package at start."""
    if name == "show":
        from tb_perfadvisor.notebook import show

        return show
    if name == "compare":
        from tb_perfadvisor.api.comparisons import compare

        return compare
    if name in __all__:
        from tb_perfadvisor.api import analyses

        return getattr(analyses, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: Any) -> None:
    """Add `%perfadvisor PATH`, after `%load_ext tb_perfadvisor`."""
    from tb_perfadvisor.notebook import perfadvisor

    shell.register_magic_function(perfadvisor)


def __dir__() -> list[str]:
    """The names of the API too, for completion in notebooks and shells."""
    return sorted({*globals(), *__all__})
