"""Made-up data in the files that public programs read, so that they run without a download.

Sizes are those that let a program run for a few epochs within a minute; shapes, types and formats
are those of the real data.
"""

from __future__ import annotations

import gzip
import pickle
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def _keras(folder: Path, name: str, **arrays: Any) -> None:
    """Arrays where Keras looks for a data set, if KERAS_HOME is the folder."""
    (folder / "datasets").mkdir(parents=True, exist_ok=True)
    np.savez(folder / "datasets" / name, **arrays)


def keras_mnist(folder: Path) -> None:
    """As `keras.datasets.mnist` finds it."""
    images, labels = _images(28, 28)
    train, test = slice(_TRAINING_IMAGES), slice(_TRAINING_IMAGES, None)
    _keras(
        folder,
        "mnist.npz",
        x_train=images[train],
        y_train=labels[train],
        x_test=images[test],
        y_test=labels[test],
    )


def _images(*shape: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Images for training, then those for tests, and their labels."""
    generator = np.random.default_rng(_SEED)
    count = _TRAINING_IMAGES + _TEST_IMAGES
    images = generator.integers(0, 256, (count, *shape), np.uint8)
    return images, generator.integers(0, 10, count).astype(np.uint8)


def keras_fashion_mnist(folder: Path) -> None:
    """As `keras.datasets.fashion_mnist` finds it, which asks for the files' digests."""
    gzipped_mnist(folder / "datasets" / "fashion-mnist")


def gzipped_mnist(folder: Path) -> None:
    """Compressed files of images and labels, as MNIST is distributed."""
    folder.mkdir(parents=True, exist_ok=True)
    images, labels = _images(28, 28)
    for prefix, part in (
        ("train", slice(_TRAINING_IMAGES)),
        ("t10k", slice(_TRAINING_IMAGES, None)),
    ):
        count = len(labels[part])
        for name, header, content in (
            ("images-idx3", struct.pack(">IIII", 2051, count, 28, 28), images[part]),
            ("labels-idx1", struct.pack(">II", 2049, count), labels[part]),
        ):
            with gzip.open(folder / f"{prefix}-{name}-ubyte.gz", "wb", 1) as file:
                file.write(header + content.tobytes())


def keras_cifar10(folder: Path) -> None:
    """As `keras.datasets.cifar10` finds it."""
    cifar10(folder / "datasets")
    batches = folder / "datasets" / "cifar-10-batches-py"
    for file in batches.glob("*_batch*"):
        held = pickle.loads(file.read_bytes())  # of `cifar10`
        file.write_bytes(pickle.dumps({"data": held["data"], b"labels": held["labels"]}))


def keras_boston_housing(folder: Path) -> None:
    """Thirteen numbers of 506 districts, and a price."""
    generator = np.random.default_rng(_SEED)
    _keras(folder, "boston_housing.npz", x=generator.random((506, 13)), y=generator.random(506))


def keras_imdb(folder: Path) -> None:
    """Reviews as lists of word numbers."""
    generator = np.random.default_rng(_SEED)
    reviews = np.empty(3_000, dtype=object)
    reviews[:] = [generator.integers(1, 9_999, 120).tolist() for _ in reviews]
    labels = generator.integers(0, 2, len(reviews))
    half = len(reviews) // 2
    _keras(
        folder,
        "imdb.npz",
        x_train=reviews[:half],
        y_train=labels[:half],
        x_test=reviews[half:],
        y_test=labels[half:],
    )


GENERATORS: dict[str, Callable[[Path], None]] = {
    made.__name__.replace("_", "-"): made
    for made in (
        *(mnist, fashion_mnist, cifar10, words, word_files, citations, gzipped_mnist, keras_mnist),
        *(keras_fashion_mnist, keras_cifar10, keras_boston_housing, keras_imdb),
    )
}
"""By the name that a recipe gives."""
