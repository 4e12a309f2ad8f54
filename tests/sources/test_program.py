"""Which files a script's program consists of."""

from __future__ import annotations

from pathlib import Path

import pytest

from tb_perfadvisor.sources import Repository, files_of_program

FILES = {
    "train.py": "import helpers, numpy, data.images as images\nfrom mine.net import Net\n",
    "helpers.py": "import train",
    "data/__init__.py": "",
    "data/images.py": "from . import decode\nfrom .store import Store\nfrom .. import broken",
    "data/decode.py": "from .cache import *",
    "data/cache.py": "",
    "data/store.py": "",
    "data/unused.py": "",
    "src/mine/__init__.py": "from mine.net import Net",
    "src/mine/net.py": "def f():\n    from mine.layers import Layer\n",
    "src/mine/layers.py": "",
    "broken.py": "def",
    "old/helpers.py": "import unused",
    "old/data/images.py": "import unused",
    "old/broken.py": "",
    "numpy.py/no_module.py": "",
    "unused.py": "",
}
IMPORTED = {
    "train.py", "helpers.py", "data/__init__.py", "data/images.py", "data/decode.py",
    "data/cache.py", "data/store.py", "src/mine/__init__.py", "src/mine/net.py",
    "src/mine/layers.py", "broken.py",
}  # fmt: skip


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return Repository(tmp_path)


def test_imports_are_followed(repository: Repository) -> None:
    assert files_of_program(repository, ["train.py"]) == IMPORTED


def test_modules_beside_the_script_come_first(repository: Repository) -> None:
    found = files_of_program(repository, ["old/helpers.py"])
    assert found == {"old/helpers.py", "unused.py"}


def test_a_script_that_is_not_there_imports_nothing(repository: Repository) -> None:
    assert files_of_program(repository, []) == set()
