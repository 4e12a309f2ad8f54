"""Keeps pauses of TensorBoard short."""

from __future__ import annotations

import gc
from functools import cache


@cache
def freeze_modules() -> None:
    """Exempt what lives now, mostly modules, from garbage collection. Once, after imports.

    A full collection looks at all objects while every other thread waits. In a TensorBoard with its
    usual plugins that takes a quarter of a second, and importing our modules makes one due: ten
    requests of a thousand then wait for it. Objects that are made later are collected as before.
    """
    gc.freeze()
