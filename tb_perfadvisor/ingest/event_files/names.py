"""Which files are event files, and which run a directory belongs to."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

OWN_DIRECTORY: Final = "perf_advisor"
"""What `perfadvisor publish` writes is no scalar of the run."""
_EVENT_FILE: Final = re.compile(r"(?:^|/)[^/]*tfevents[^/]*$")
_PARTS_OF_A_RUN: Final = ("train", "validation")
"""Keras logs training and validation of one run into directories of these names."""


def is_event_file(path: str) -> bool:
    """Whether a file is one that TensorBoard's writers wrote, by its name."""
    return _EVENT_FILE.search(path) is not None


def run_of_directory(parts: Sequence[str]) -> tuple[str, str]:
    """The run that a directory belongs to, and what tags in it begin with.

    >>> run_of_directory(["resnet", "train"]), run_of_directory(["resnet"]), run_of_directory([])
    (('resnet', 'train/'), ('resnet', ''), ('.', ''))
    """
    if parts and parts[-1] in _PARTS_OF_A_RUN:
        return "/".join(parts[:-1]) or ".", f"{parts[-1]}/"
    return "/".join(parts) or ".", ""
