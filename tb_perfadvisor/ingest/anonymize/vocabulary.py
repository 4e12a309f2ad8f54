"""The words and files that are public, and so may stay in an anonymized profile.

Four lists of words: `marker_words.txt`, which rules and readers look for; `operator_words.txt` and
`kernel_words.txt`, of names of operations and kernels; and `framework_words.txt`, generated with
`framework_files.txt` from released versions of the frameworks.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

from tb_perfadvisor.ingest.kernels.kernel_names import RECOGNIZED_WORDS

WORD: Final = re.compile(r"[^\W\d_]+")
_CAMEL: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
MIN_HASHED_CHARS: Final = 3
"""Shorter words of ASCII letters tell nothing of the user. They are too many to list (`f32`)."""
# Packages whose files stay wherever they are installed, listed or not.
_INSTALLED_PACKAGES: Final = frozenset(
    {
        *("torch", "torchvision", "torchaudio", "tensorflow", "keras", "jax", "jaxlib", "flax"),
        *("optax", "numpy", "PIL", "lightning", "lightning_fabric", "pytorch_lightning"),
        *("transformers", "accelerate", "diffusers", "datasets", "deepspeed", "megatron"),
        *("torchtitan", "vllm", "sglang", "tensorrt_llm", "apex", "timm", "ray", "triton", "cv2"),
        *("h5py", "pandas", "scipy"),
    }
)


def parts_of_word(word: str) -> list[str]:
    """The parts of a word in camel case: `ConvBackward` as `Conv`, `Backward`."""
    return _CAMEL.findall(word)


def split_words(name: str) -> list[str]:
    """The words of a name: `_call_impl` as `call`, `impl`; words of one letter are left out."""
    parts = (part for word in WORD.findall(name) for part in parts_of_word(word))
    return [part for part in parts if len(part) > 1]


def is_framework_package(name: str) -> bool:
    """Whether a folder has the name of a framework's package."""
    return name in _INSTALLED_PACKAGES


def is_framework_file(path: str) -> bool:
    """Whether a released framework, or Python's standard library, has a module at this path.

    Args:
        path: Relative to the folder of packages: `torch/nn/functional.py`.
    """
    folder, _, module = path.removesuffix(".py").rpartition("/")
    return module in _framework_files().get(folder, frozenset())


@cache
def framework_words() -> frozenset[str]:
    """The vocabulary of the frameworks, lower case."""
    lists = ("framework_words.txt", "operator_words.txt", "kernel_words.txt")
    return frozenset().union(*map(_words, lists))


@cache
def known_words(kind: str) -> frozenset[str]:
    """The words that stay in a `marker`, `operator`, `kernel` or `framework`, lower case.

    In the names of a framework's own functions, all of its words stay.
    """
    words = _words("marker_words.txt")
    if kind == "framework":
        return words | framework_words()
    if kind != "marker":
        words |= _words("operator_words.txt")
    return words | _words("kernel_words.txt") if kind == "kernel" else words


@cache
def kernel_fragments() -> re.Pattern[str]:
    """Finds what kernels are recognized by inside a word: `gemm` in `mygemm`. Has one group."""
    pieces = {
        piece.lower()
        for text in RECOGNIZED_WORDS
        for piece in WORD.findall(text)
        if len(piece) > MIN_HASHED_CHARS
    }
    longest_first = sorted(pieces, key=lambda piece: (-len(piece), piece))
    return re.compile(f"({'|'.join(longest_first)})", re.IGNORECASE)


@cache
def _words(file: str) -> frozenset[str]:
    return frozenset(word for line in _lines(file) for word in line.split())


@cache
def _framework_files() -> dict[str, frozenset[str]]:
    """Modules by folder."""
    rows = (line.partition(":") for line in _lines("framework_files.txt"))
    return {folder: frozenset(modules.split()) for folder, _, modules in rows}


def _lines(file: str) -> list[str]:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]
