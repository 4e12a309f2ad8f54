r"""How each regular expression that sees text of a profile grows with the length of the text.

    python benchmarks/pattern_times.py    # exits with 1 if one grows with the square

Names come from files that others wrote. An expression that looks for `\w+X` from every place of a
long word takes time with the square of its length: 100,000 characters took 23 seconds.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from msgspec import Struct

import tb_perfadvisor
from tb_perfadvisor.patterns import Regex
from tb_perfadvisor.training.metrics import known_metrics

if sys.version_info >= (3, 11):
    from re import _constants as constants
    from re import _parser as parser
else:
    import sre_constants as constants
    import sre_parse as parser

SHORT, LONG = 1_000, 8_000
MOST_RATIO = 24
"""Eight times the length takes 8 times as long, or 64 times with its square: between the two."""
HARMLESS_S = 0.005
"""Less than any expression takes that looks at 8,000 characters from each of them."""
# They see command lines, programs and answers of the user's own machine, no profiles.
OTHERS = frozenset(
    {"__main__", "cli", "instrument", "machine", "proof", "static", "suggest", "testing"}
    | {"tpu_compiler", "sources"}
)

Key = tuple["str | bytes", int]
"""A pattern and its flags."""

_ANCHORED = {"match", "fullmatch"}
_METHODS = {*_ANCHORED, "search", "sub", "subn", "findall", "finditer", "split"}
_MANY = 50
"""Repeats of fewer characters take no time to speak of."""
_SAMPLES = "aA_1:. ,([{/-%#$'=<\t\n"
_LOOKS_LIKE_ONE = re.compile(r"\\[wdsb]|\(\?|[\])\w][*+]")
_OTHER_UNITS = ("a", "a::", "1", " ", "(", "[", "%a = ", ",", "_1", "a.", "/", "\n")


class Expression(Struct, frozen=True):
    """A regular expression, and how it is used."""

    module: str
    pattern: str | bytes
    flags: int
    methods: frozenset[str]
    """`match`, `fullmatch`, and `search` for all that look for a place to begin."""


def expressions(others: Container[str]) -> Iterator[Expression]:
    """All of our package, but for those of other modules in it."""
    modules = [*_modules(others)]
    trees = {module: ast.parse(_source(module)) for module in modules}
    called = {module: _called(tree) for module, tree in trees.items()}
    everywhere: dict[str, set[str]] = defaultdict(set)
    for names in called.values():
        for name, methods in names.items():
            everywhere[name] |= methods
    for module in modules:
        found: dict[Key, set[str]] = defaultdict(set)
        for name, value in vars(module).items():
            methods = called[module].get(name) or everywhere.get(name) or {"search"}
            for pattern in _patterns_in(value):
                found[pattern.pattern, pattern.flags] |= methods
        for text, flags, method in _written(trees[module], module):
            found[text, flags].add(method)
        for (text, flags), methods in found.items():
            yield Expression(module.__name__, text, flags, frozenset(methods))
    for metric in known_metrics():
        yield Expression("metrics.toml", metric.pattern, 0, frozenset({"fullmatch"}))


def texts(expression: Expression) -> list[tuple[str, str]]:
    """Beginnings, and what may be repeated after each, to make an expression work long."""
    pattern: Any = expression.pattern
    parsed = parser.parse(pattern, expression.flags)
    found = {*_texts(parsed, ""), *(("", unit) for unit in _OTHER_UNITS)}
    return sorted(text for text in found if text[1])


def _modules(others: Container[str]) -> Iterator[ModuleType]:
    for package in pkgutil.iter_modules(tb_perfadvisor.__path__):
        if package.name not in others:
            root = importlib.import_module(f"{tb_perfadvisor.__name__}.{package.name}")
            yield root
            for found in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{root.__name__}."):
                yield importlib.import_module(found.name)


def _source(module: ModuleType) -> str:
    return Path(str(module.__file__)).read_text(encoding="utf-8")


def _patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    """The patterns that a constant of a module is or holds."""
    if isinstance(value, (re.Pattern, Regex)):
        yield cast("re.Pattern[Any]", value)
    elif isinstance(value, (tuple, list)):
        for each in value:
            yield from _patterns_in(each)
    elif isinstance(value, dict):
        yield from _patterns_in([*value.values(), *value])
    elif isinstance(value, Struct):
        yield from _patterns_in([getattr(value, name) for name in value.__struct_fields__])


def _called(tree: ast.AST) -> dict[str, set[str]]:
    """How each name of a module is used as a pattern."""
    called: dict[str, set[str]] = defaultdict(set)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name | ast.Attribute):
            name = node.value.id if isinstance(node.value, ast.Name) else node.value.attr
            if node.attr in _METHODS and name != "re":
                called[name].add(node.attr if node.attr in _ANCHORED else "search")
    return called


def _written(tree: ast.AST, module: ModuleType) -> Iterator[tuple[str | bytes, int, str]]:
    """The patterns of calls such as `re.search(PATTERN, text)`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        method = node.func.attr
        if ast.unparse(node.func.value) != "re" or method not in _METHODS or not node.args:
            continue
        method = method if method in _ANCHORED else "search"
        try:
            code = compile(ast.Expression(node.args[0]), module.__name__, "eval")
            pattern = eval(code, vars(module))
        except NameError:  # such as those of a table, in a loop
            for value in vars(module).values():
                for text in _texts_in(value):
                    yield text, 0, method
            continue
        if isinstance(pattern, (str, bytes)):
            yield pattern, 0, method


def _texts_in(value: Any) -> Iterator[str]:
    """The texts in a table that look like regular expressions."""
    if isinstance(value, (tuple, list)):
        for each in value:
            if isinstance(each, str) and _LOOKS_LIKE_ONE.search(each):
                yield each
            elif not isinstance(each, str):
                yield from _texts_in(each)


# --- texts ------------------------------------------------------------------------------------


def _texts(parsed: Any, before: str) -> Iterator[tuple[str, str]]:
    """What each long repeat repeats, what comes before it, and both."""
    for kind, value in parsed:
        name = str(kind)
        if name.endswith("_REPEAT"):
            least, most, inner = value
            unit = _sample(inner)
            if most == constants.MAXREPEAT or most > _MANY:
                for repeated in (unit, before, before + unit, f"{before}_", f"{before} "):
                    yield "", repeated
                yield before, unit
            yield from _texts(inner, before)
            before += unit * min(least, 3)
        elif name == "BRANCH":
            for inner in value[1]:
                yield from _texts(inner, before)
            before += _sample(value[1][0])
        elif name in ("SUBPATTERN", "ATOMIC_GROUP"):
            inner = value[3] if name == "SUBPATTERN" else value
            yield from _texts(inner, before)
            before += _sample(inner)
        else:
            before += _sample([(kind, value)])


def _sample(parsed: Any) -> str:
    """A short text that matches, where that is easy to say."""
    text = ""
    for kind, value in parsed:
        name = str(kind)
        if name == "LITERAL":
            text += chr(value)
        elif name in ("NOT_LITERAL", "ANY"):
            text += "a" if value != ord("a") else "b"
        elif name == "IN":
            text += next((each for each in _SAMPLES if _is_in(each, value)), "a")
        elif name.endswith("_REPEAT"):
            text += _sample(value[2]) * min(max(value[0], 1), 3)
        elif name == "SUBPATTERN":
            text += _sample(value[3])
        elif name == "BRANCH":
            text += _sample(value[1][0])
        elif name == "ATOMIC_GROUP":
            text += _sample(value)
    return text


def _is_in(character: str, members: Any) -> bool:
    """Whether a character is in a set."""
    is_in = is_negated = False
    for kind, value in members:
        name = str(kind)
        if name == "NEGATE":
            is_negated = True
        elif name == "LITERAL":
            is_in |= ord(character) == value
        elif name == "RANGE":
            is_in |= value[0] <= ord(character) <= value[1]
        elif name == "CATEGORY":
            is_of = {
                "WORD": character.isalnum() or character == "_",
                "DIGIT": character.isdigit(),
                "SPACE": character.isspace(),
            }
            _, *negated, category = str(value).split("_")
            is_in |= is_of.get(category, False) != bool(negated)
    return is_in != is_negated


def work_s(call: Callable[[Any], object], text: str | bytes) -> float:
    """The processor time of the quickest of three calls; one is enough if it is harmless."""
    best_s = float("inf")
    for _ in range(3):
        began_s = time.process_time()
        call(text)
        best_s = min(best_s, time.process_time() - began_s)
        if best_s < HARMLESS_S:
            break
    return best_s


def fault(expression: Expression) -> str:
    """On which text an expression takes too long; empty if on none."""
    compiled = re.compile(expression.pattern, expression.flags)
    for method in sorted(expression.methods):
        call = getattr(compiled, method)
        for begin, unit in texts(expression):
            long, short = (
                text if isinstance(expression.pattern, str) else text.encode()
                for text in (
                    # The last character lets all fail that end with `$`.
                    (begin + unit * (size // len(unit) + 1))[:size] + "!"
                    for size in (LONG, SHORT)
                )
            )
            long_s = work_s(call, long)
            if long_s >= HARMLESS_S and long_s > MOST_RATIO * work_s(call, short):
                return f"{expression.module}: {method} {expression.pattern!r}: {begin!r}, {unit!r}"
    return ""


def main() -> None:
    """Print the expressions that take too long."""
    found = [fault(each) for each in expressions(OTHERS)]
    print("\n".join(each for each in found if each) or "each grows with the length of the text")
    sys.exit(any(found))


if __name__ == "__main__":
    main()
