"""Made-up data in the files that public programs read, so that they run without a download.

Sizes are those that let a program run for a few epochs within a minute; shapes, types and formats
are those of the real data.
"""

from __future__ import annotations

import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

_TRAINING_IMAGES, _TEST_IMAGES = 6_000, 1_000
_WORDS, _LINES, _WORDS_PER_LINE = 2_000, 2_500, 20
_PAPERS, _PAPER_WORDS, _CITATIONS = 2_708, 1_433, 5_429
_SEED = 0


def mnist(folder: Path, name: str = "MNIST") -> None:
    """Images and labels as torchvision finds them: `folder/MNIST/raw/*-ubyte`."""
    generator = np.random.default_rng(_SEED)
    raw = folder / name / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", _TRAINING_IMAGES), ("t10k", _TEST_IMAGES)):
        images = generator.integers(0, 256, (count, 28, 28), np.uint8)
        labels = generator.integers(0, 10, count).astype(np.uint8)
        header = struct.pack(">IIII", 2051, count, 28, 28)
        (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">II", 2049, count)
        (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def cifar10(folder: Path) -> None:
    """Batches as torchvision finds them; their digests differ from those of the real files."""
    generator = np.random.default_rng(_SEED)
    target = folder / "cifar-10-batches-py"
    target.mkdir(parents=True, exist_ok=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        images = generator.integers(0, 256, (_TRAINING_IMAGES // 5, 3072), np.uint8)
        labels = generator.integers(0, 10, len(images)).tolist()
        (target / name).write_bytes(pickle.dumps({"data": images, "labels": labels}))
    names = [f"class {number}" for number in range(10)]
    (target / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))


def words(file: Path) -> None:
    """Lines of words from a small vocabulary, the frequent ones first."""
    chosen = random.Random(_SEED)
    known = [f"w{number}" for number in range(_WORDS)]
    weights = [1 / (rank + 1) for rank in range(_WORDS)]
    file.parent.mkdir(parents=True, exist_ok=True)
    lines = (" ".join(chosen.choices(known, weights, k=_WORDS_PER_LINE)) for _ in range(_LINES))
    file.write_text("\n".join(lines) + "\n", "utf-8")


def word_files(folder: Path) -> None:
    """The three parts of a text corpus."""
    for name in ("train.txt", "valid.txt", "test.txt"):
        words(folder / name)


def citations(folder: Path) -> None:
    """A citation graph of the size of Cora, with its two files."""
    chosen = random.Random(_SEED)
    folder.mkdir(parents=True, exist_ok=True)
    topics = [f"topic_{number}" for number in range(7)]
    lines = []
    for paper in range(_PAPERS):
        present = set(chosen.sample(range(_PAPER_WORDS), 18))
        row = "\t".join("1" if word in present else "0" for word in range(_PAPER_WORDS))
        lines.append(f"{paper}\t{row}\t{chosen.choice(topics)}")
    (folder / "cora.content").write_text("\n".join(lines) + "\n", "utf-8")
    pairs = (chosen.sample(range(_PAPERS), 2) for _ in range(_CITATIONS))
    (folder / "cora.cites").write_text(
        "".join(f"{cited}\t{citing}\n" for cited, citing in pairs), "utf-8"
    )


def fashion_mnist(folder: Path) -> None:
    """Like `mnist`, by another name."""
    mnist(folder, "FashionMNIST")


GENERATORS: dict[str, Callable[[Path], None]] = {
    made.__name__.replace("_", "-"): made
    for made in (mnist, fashion_mnist, cifar10, words, word_files, citations)
}
"""By the name that a recipe gives."""
