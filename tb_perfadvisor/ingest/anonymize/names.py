"""Which names of a profile are public, and what replaces the others.

Four lists of words: `marker_words.txt`, which rules and readers look for; `operator_words.txt` and
`kernel_words.txt`, of names of operations and kernels; and `framework_words.txt`, generated with
`framework_files.txt` from released versions of the frameworks.

A name is split into words. Known words, short numbers and punctuation stay, so that rules still
recognize `Optimizer.step#…` or `jit(…)/dot_general`. All other words are replaced by hashes, the
same one everywhere in a file.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from functools import cache
from pathlib import Path
from typing import Final

from tb_perfadvisor.ingest.kernels.kernel_names import RECOGNIZED_WORDS
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.names import is_generated

WORD: Final = regex(r"[^\W\d_]+")
_CAMEL: Final = regex(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[^\W\d_A-Za-z]+")
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

    The path is relative to the folder of packages: `torch/nn/functional.py`.
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


# No word that a pattern searches for consists of these letters alone.
_HASH_LETTERS: Final = "qxzvwjky"
_HASH_CHARS: Final = 10

_IPV4: Final = regex(r"\b\d{1,3}(?:\.\d{1,3}){3}\b|(?<=ip[-_])\d{1,3}(?:[-_]\d{1,3}){3}\b")
_IPV6: Final = regex(
    r"(?<![\w:.])(?=[0-9A-Fa-f]*:)[0-9A-Fa-f:]{2,39}(?:\.\d{1,3}){0,3}(?:%\w+)?(?![\w:])"
)
_HARDWARE_ADDRESS: Final = regex(
    r"\b[0-9A-Fa-f]{2}(?:([:-])[0-9A-Fa-f]{2})(?:\1[0-9A-Fa-f]{2}){4}\b"
)
# Ids of jobs, commits and objects. Types such as `bf16bf16` look like some, but are none.
_HEX_ID: Final = regex(
    r"(?<![A-Za-z0-9])(?:0x)?(?=[a-f]*\d)(?=\d*[a-f])"
    r"(?!(?:[a-f]{1,2}(?:4|6|8|16|32|64))+(?![0-9a-f]))[0-9a-f]{8,}(?![A-Za-z0-9])"
)
# Ids of jobs, dates and numbers of accounts have seven digits or more; numbers of tokens and of
# most steps have fewer. Sizes in brackets and digits behind a decimal point stay.
_LONG_NUMBER: Final = regex(r"[\[{][\d\s,:]*[\]}]|(?<!\d)(?<!\d\.)(\d{7,})")
# vLLM's kernels state types as long numbers: `marlin::Marlin<1125899906909952l, …>`.
_LONG_NUMBER_OF_KERNEL: Final = regex(rf"(?<=[<, ])\d+u?l?(?=[,>])|{_LONG_NUMBER.pattern}")
_PROFILER_STEP: Final = regex(r"ProfilerStep#\d+$")

# Names of Tensile and nvjet hold nothing but parameters: `Cijk_Ailk_Bljk_HHS_BH_MT16x16x64_…`,
# `nvjet_sm103_tst_8x64_64x16_4x1_v_bz_TNN`.
_PARAMETERS_ONLY: Final = regex(
    r"(?:Custom_)?Cij[a-z]*_A[a-z]{2,4}_B[a-z]{2,4}_[A-Z][A-Za-z0-9_]*$"
    r"|nvjet_(?:sm\d+_)?[a-z]{3,6}_\d+x\d+_\w*$"
)
# The grammar of mangled C++ names, as far as it tells identifiers from all else: literals and
# references to earlier parts, or the length of an identifier.
_MANGLED: Final = regex(r"L[a-z]n?\d+E|[STD][0-9A-Z]*_|(\d+)|.", re.DOTALL)
_RUNTIME_CALL: Final = regex(r"(?:cuda|cu|hip|hsa_|mu|ur|ze|aclrt|acl)[A-Z_]?\w*$")

# `dir/file.py(12): function` of Kineto, `file.py:12 function` of XLA, `/dir/file.py:12`.
_FRAME: Final = regex(r"(?P<path>[^(:]*\.py)(?P<line>[(:]\d+\)?:?\s*)?(?P<function>.*)$")
_INSTALLED: Final = regex(r"^(?:.*/)?((?:site|dist)-packages/(.*))$")
_STANDARD_LIBRARY: Final = regex(r"^(?:.*/)?(lib/python3(?:\.\d+)?t?/(.*))$")


class Names:
    """Hashes names consistently; one instance per file."""

    def __init__(self, key: bytes) -> None:
        """Create an anonymizer; equal keys, which are secret, give equal hashes."""
        self._key = key[:64]
        self._hashes: dict[str, str] = {}
        self._by_name: dict[tuple[str, str], str] = {}
        self._unlisted: set[str] = set()

    @property
    def unlisted_words(self) -> tuple[str, ...]:
        """The words that were kept, but are in no framework's vocabulary; sorted, lower case."""
        return tuple(sorted(self._unlisted))

    def marker(self, name: str) -> str:
        """A name that the user may have chosen: an annotation, function, module or thread."""
        return self._replaced(name, "marker")

    def operator(self, name: str) -> str:
        """The name or text of an operation."""
        return self._replaced(name, "operator")

    def operator_values(self, text: str) -> str:
        """The arguments of an operation: like `operator`, but numbers stay."""
        return self._words_replaced(text, "operator")

    def kernel(self, name: str) -> str:
        """The name of a kernel, a copy or a memset on a device."""
        if _PARAMETERS_ONLY.match(name):
            return name
        if name.startswith("_Z"):
            return self._mangled(name)
        return self._replaced(name, "kernel")

    def runtime_call(self, name: str) -> str:
        """The name of a call of a device's runtime or driver."""
        return self.as_written(name) if _RUNTIME_CALL.match(name) else self.kernel(name)

    def as_written(self, text: str) -> str:
        """The same text, which a framework or runtime wrote. Its unknown words are noted."""
        if (text, "written") not in self._by_name:
            self._by_name[text, "written"] = text
            for word in WORD.findall(text):
                self._note(word)
        return text

    def frame(self, frame: str) -> str:
        """A Python frame or source location, such as `dir/file.py(12): function`."""
        known = self._by_name.get((frame, "frame"))
        if known is None:
            place = _FRAME.match(frame)
            if place is not None:
                known = self._place(place)
            else:
                is_python = frame.startswith("<built-in ")
                known = self._replaced(frame, "framework" if is_python else "marker")
            self._by_name[frame, "frame"] = known
        return known

    def host(self, name: str) -> str:
        """The name of a machine; empty stays empty."""
        return f"host-{self._hash(name)}" if name else ""

    def _place(self, place: re.Match[str]) -> str:
        path, line, function = place["path"], place["line"] or "", place["function"]
        if is_generated(path):
            return f"torchinductor_user/{self._hash(path)}.py{line}{self.marker(function)}"
        installed = _INSTALLED.match(path)
        if installed:
            if is_framework_package(installed[2].split("/")[0]):
                return self.as_written(installed[1] + line + function)
            return self.marker(installed[1] + line + function)
        standard = _STANDARD_LIBRARY.match(path)
        if standard and is_framework_file(standard[2]):
            return self.as_written(standard[1] + line + function)
        folders = path.split("/")
        # A framework can run from a checkout: `/workspace/sglang/python/sglang/srt/server.py`.
        starts = [i for i, folder in enumerate(folders) if is_framework_package(folder)]
        for start in (0, *starts):
            inside = "/".join(folders[start:])
            # A user's file can have the path of a framework's, so the function is checked, too.
            if is_framework_file(inside):
                return inside + line + self._words_replaced(function, "framework")
        is_absolute = not folders[0] or re.match(r"[A-Za-z]:", folders[0])
        start = max(starts, default=len(folders) - 1) if is_absolute else 0
        user = f"/{self._hash('/'.join(folders[:start]))}/" if start else ""
        return user + self.marker("/".join(folders[start:]) + line + function)

    def _replaced(self, name: str, kind: str) -> str:
        known = self._by_name.get((name, kind))
        if known is None:
            known = self._words_replaced(self._identifiers_replaced(name, kind), kind)
            self._by_name[name, kind] = known
        return known

    def _mangled(self, name: str) -> str:
        """A mangled C++ name with other identifiers."""
        pieces: list[str] = []
        position = 0
        while match := _MANGLED.match(name, position):
            position = match.end()
            if match[1] is None:
                pieces.append(match[0])
                continue
            identifier = name[position : position + int(match[1][-4:])]
            position += len(identifier)
            replaced = self._replaced(identifier, "kernel")
            pieces.append(f"{len(replaced)}{replaced}")
        return "".join(pieces)

    def _identifiers_replaced(self, text: str, kind: str) -> str:
        """The text without addresses and long numbers."""
        if text.isalpha() or _PROFILER_STEP.match(text):
            return text
        text = _HARDWARE_ADDRESS.sub("00:00:00:00:00:00", _IPV4.sub("0.0.0.0", text))
        if ":" in text:
            text = _IPV6.sub(lambda match: "::" if _is_ipv6(match[0]) else match[0], text)
        text = _HEX_ID.sub(lambda match: self._hash(match[0]), text)
        numbers = _LONG_NUMBER_OF_KERNEL if kind == "kernel" else _LONG_NUMBER
        return numbers.sub(lambda match: self._number(match[1]) if match[1] else match[0], text)

    def _words_replaced(self, text: str, kind: str) -> str:
        return WORD.sub(lambda match: self._word(match[0], kind), text)

    def _word(self, word: str, kind: str) -> str:
        is_short = len(word) < MIN_HASHED_CHARS and word.isascii()
        if is_short or word.lower() in known_words(kind):
            # Types and layouts have short names.
            if not is_short or kind == "marker":
                self._note(word)
            return word
        parts = parts_of_word(word)
        if len(parts) == 1 and kind == "kernel":
            parts = [part for part in kernel_fragments().split(word) if part]
        if len(parts) > 1:
            return "".join(self._word(part, kind) for part in parts)
        if kind == "kernel" and kernel_fragments().fullmatch(word):
            return word
        return self._hashed_like(word)

    def _note(self, word: str) -> None:
        public = framework_words()
        if word.lower() not in public:
            parts = (part.lower() for part in parts_of_word(word))
            self._unlisted.update(part for part in parts if len(part) > 1 and part not in public)

    def _hashed_like(self, word: str) -> str:
        """The hash of a word, in the same case."""
        hashed = self._hash(word.lower())
        if word.isupper():
            return hashed.upper()
        return hashed.capitalize() if word[0].isupper() else hashed

    def _hash(self, text: str) -> str:
        if text not in self._hashes:
            letters = (_HASH_LETTERS[byte % len(_HASH_LETTERS)] for byte in self._digest(text))
            self._hashes[text] = "".join(letters)[:_HASH_CHARS]
        return self._hashes[text]

    def _number(self, digits: str) -> str:
        """Other digits, as many."""
        value = int.from_bytes(self._digest(digits), "big")
        return "1" + str(value)[-len(digits) + 1 :].zfill(len(digits) - 1)

    def _digest(self, text: str) -> bytes:
        return hashlib.blake2b(text.encode("utf-8", "replace"), key=self._key).digest()


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text.partition("%")[0]).version == 6
    except ValueError:
        return False
