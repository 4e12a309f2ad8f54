"""Recognizes Python files that torch.compile generated: nobody edits them."""

from __future__ import annotations

import re

GENERATED_FILE = re.compile(
    r"(?:^|[/\\])(?:torchinductor_[^/\\]{1,64}[/\\]|([a-z2-7]{2})[/\\]c\1[a-z2-7]{20,64}\.py\b)"
)
"""A path in Inductor's cache: below `torchinductor_USER`, or `ov/cov463….py` in a directory that
the user chose. A file's name is `c` and a hash in base 32; its directory is the hash's first two
characters (torch/_inductor/codecache.py, `get_path`)."""


GENERATED_KERNEL = re.compile(r"triton_(?:poi|per|red|for|tem)_fused|triton__\d")
"""A kernel that Inductor generated. The second is the name before PyTorch 2.2:
torch/_inductor/config.py, `descriptive_names`."""


def is_generated(path: str) -> bool:
    """Whether a path, or a frame that begins with one, is of a generated file."""
    return GENERATED_FILE.search(path) is not None
