"""The code of remedies names what exists in the current version of its framework."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from tests.promises.test_advice import REMEDIES

ALIASES = {
    "torch": "torch",
    "F": "torch.nn.functional",
    "tf": "tensorflow",
    "keras": "keras",
    "jax": "jax",
    "jnp": "jax.numpy",
    "transformers": "transformers",
}
"""Names as remedies use them, and the modules that they stand for."""
# Frameworks deprecate parts of their own that they still import.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
INTERNAL = ("torch._C", "torch.ops")
"""Made when they are used."""


def _module(name: str) -> Any:
    if importlib.util.find_spec(name.partition(".")[0]) is None:
        return None
    return importlib.import_module(name)


def _chains(tree: ast.AST) -> Iterator[tuple[str, ast.Call | None]]:
    """Dotted names in code that begin with a module, each with its call if it is called."""
    inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    calls = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inside:
            text = ast.unparse(node)
            if text.replace(".", "").replace("_", "").isalnum():
                yield text, calls.get(id(node))


def _resolve(text: str) -> Any:
    """The object of a dotted name; None if its module is not installed."""
    root, *names = text.split(".")
    found = _module(ALIASES[root])
    path = ALIASES[root]
    for name in names if found is not None else ():
        path = f"{path}.{name}"
        if not hasattr(found, name):
            importlib.import_module(path)  # Raises if it is no submodule either.
        found = getattr(found, name)
    return found


def _takes(function: Any, argument: str) -> bool:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # Written in C.
        return True
    kinds = {parameter.kind for parameter in parameters.values()}
    return argument in parameters or inspect.Parameter.VAR_KEYWORD in kinds


CODE = sorted({r.snippet for r in REMEDIES if r.snippet and r.language == "python"})


def _missing(code: str) -> Iterator[str]:
    """The names and arguments in code that its frameworks do not have."""
    tree = ast.parse(code)
    for text, call in _chains(tree):
        if text.split(".")[0] not in ALIASES or text.startswith(INTERNAL):
            continue
        try:
            found = _resolve(text)
        except ImportError:
            yield text
            continue
        for keyword in call.keywords if call is not None and found is not None else ():
            if keyword.arg is not None and not _takes(found, keyword.arg):
                yield f"{text}({keyword.arg}=)"
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            try:
                module = _module(node.module)
            except ImportError:
                yield node.module
                continue
            for alias in node.names if module is not None else ():
                if not hasattr(module, alias.name):
                    yield f"{node.module}.{alias.name}"


def test_names_and_arguments_exist() -> None:
    assert len(CODE) > 300
    assert [(name, code) for code in CODE for name in _missing(code)] == []


@pytest.mark.parametrize(
    "code",
    ["torch.no_such(1)", "torch.no.such()", "jnp.sum(x, none=1)", "from torch.nn import No"],
)
def test_what_does_not_exist_is_noticed(code: str) -> None:
    assert len(list(_missing(code))) == 1
