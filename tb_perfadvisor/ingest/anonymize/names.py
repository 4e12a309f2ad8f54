"""Replaces words in names, except those that frameworks, runtimes and markers use.

A name is split into words. Known words, numbers and punctuation stay, so that rules still recognize
`Optimizer.step#…` or `jit(…)/dot_general`. All other words are replaced by hashes, the same
one everywhere in a file.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path
from typing import Final

_WORD: Final = re.compile(r"[^\W\d_]+")
_CAMEL: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
_ADDRESS: Final = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}\b")
# Shorter words tell nothing of the user, and are too many to list (`f32`, `mm`, `to`).
_MIN_HASHED_CHARS: Final = 3
# No word that a pattern searches for consists of these letters alone.
_HASH_LETTERS: Final = "qxzvwjky"
_HASH_CHARS: Final = 10
# Operators of these libraries stay as they are.
_LIBRARY_OPERATOR: Final = re.compile(
    r"(?:aten|prims?|c10d|c10d_functional|_c10d_functional|torch|torchvision|torchaudio|quantized"
    r"|fbgemm|xformers|flash_attn|nccl|inductor)::\w+(?:\.\w+)?$"
)
_PACKAGES: Final = (
    "torch|torchvision|torchaudio|tensorflow|keras|jax|jaxlib|flax|optax|numpy|PIL|lightning"
    "|pytorch_lightning|transformers|accelerate|diffusers|datasets|deepspeed|megatron|torchtitan"
    "|vllm|sglang|tensorrt_llm|apex|timm|ray|triton|cv2|h5py|pandas|scipy"
)
_LIBRARY_FILE: Final = re.compile(
    rf"^(?:.*/)?(?P<installed>(?:site|dist)-packages/)(?P<inside>(?:{_PACKAGES})/.*)$"
    rf"|^(?P<relative>(?:{_PACKAGES})/.*)$"
    # Servers often run from a checkout: `/sgl-workspace/sglang/python/sglang/srt/…`.
    r"|^.*/(?P<checkout>(?:sglang/srt|vllm/v1|vllm/model_executor|tensorrt_llm/_torch)/.*)$"
)
_INSTALLED: Final = re.compile(r"^.*/((?:site|dist)-packages/.*)$")


class Names:
    """Hashes names consistently; one instance per file."""

    def __init__(self, key: bytes) -> None:
        """Create an anonymizer.

        Args:
            key: Secret of the hashes; equal keys give equal hashes.
        """
        self._key = key[:64]
        self._hashes: dict[str, str] = {}
        self._by_name: dict[tuple[str, bool], str] = {}

    def marker(self, name: str) -> str:
        """A name that the user may have chosen: an annotation, function, module or thread."""
        return self._replaced(name, with_operators=False)

    def operator(self, name: str) -> str:
        """The name or text of an operation."""
        if _LIBRARY_OPERATOR.match(name):
            return name
        return self._replaced(name, with_operators=True)

    def frame(self, frame: str) -> str:
        """A Python frame or source location, such as `dir/file.py(12): function`."""
        library = _LIBRARY_FILE.match(frame)
        if library:
            inside = library["inside"] or library["relative"] or library["checkout"]
            return (library["installed"] or "") + inside
        installed = _INSTALLED.match(frame)
        return self.marker(installed[1] if installed else frame)

    def host(self, name: str) -> str:
        """The name of a machine; empty stays empty."""
        return f"host-{self._hash(name)}" if name else ""

    def _replaced(self, name: str, *, with_operators: bool) -> str:
        key = (name, with_operators)
        known = self._by_name.get(key)
        if known is None:
            words = _words("marker_words.txt")
            if with_operators:
                words |= _words("operator_words.txt")
            text = _ADDRESS.sub("0.0.0.0", name)
            known = _WORD.sub(lambda match: self._word(match[0], words), text)
            self._by_name[key] = known
        return known

    def _word(self, word: str, words: frozenset[str]) -> str:
        if len(word) < _MIN_HASHED_CHARS or word.lower() in words:
            return word
        parts = _CAMEL.findall(word)
        if len(parts) == 1:
            return self._hashed_like(word)
        return "".join(self._word(part, words) for part in parts)

    def _hashed_like(self, word: str) -> str:
        """The hash of a word, in the same case."""
        hashed = self._hash(word.lower())
        if word.isupper():
            return hashed.upper()
        return hashed.capitalize() if word[0].isupper() else hashed

    def _hash(self, text: str) -> str:
        if text not in self._hashes:
            digest = hashlib.blake2b(text.encode("utf-8", "replace"), key=self._key).digest()
            letters = (_HASH_LETTERS[byte % len(_HASH_LETTERS)] for byte in digest[:_HASH_CHARS])
            self._hashes[text] = "".join(letters)
        return self._hashes[text]


@cache
def _words(file: str) -> frozenset[str]:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return frozenset(
        word for line in text.splitlines() if not line.startswith("#") for word in line.split()
    )
