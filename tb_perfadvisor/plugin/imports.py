"""Imports packages as a whole before their modules, as requests come in several threads.

The `__init__` of some packages imports their modules. If one thread imports such a package while
another one imports a module of it, each waits for the other, and Python ends that by giving them a
module that is half there. A thread that imports the package first holds nothing meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module


def import_whole(*packages: str) -> None:
    """Import some packages. What fails here fails again, and is reported, where it is needed."""
    with suppress(Exception):
        for package in packages:
            import_module(package)
