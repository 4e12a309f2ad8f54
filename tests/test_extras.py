"""Hints name packages that pip can install, wherever the package came from."""

from __future__ import annotations

import re
import shlex
from importlib import metadata
from pathlib import Path

import pytest

from tb_perfadvisor.extras import install_command

ROOT = Path(__file__).parents[1]


def test_the_command_names_what_the_extra_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        metadata,
        "requires",
        lambda _: [
            "numpy>=1.24",
            'mcp>=2.0; extra == "mcp"',
            "jax[tpu]>=0.8 ; extra == 'tpu'",
            'numpy>=2; sys_platform == "linux" and extra == "tpu"',
            'pytest; extra == "mcp-test"',
        ],
    )
    assert install_command("mcp") == "pip install 'mcp>=2.0'"
    assert install_command("tpu") == "pip install 'jax[tpu]>=0.8' 'numpy>=2'"
    assert install_command("gcs") == "pip install '.[gcs]' in a clone of the repository"


def test_without_metadata_the_clone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "requires", fail)
    assert install_command("mcp") == "pip install '.[mcp]' in a clone of the repository"


@pytest.mark.parametrize("extra", ["dask", "gcs", "mcp", "s3", "tpu"])
def test_the_extras_of_hints_exist(extra: str) -> None:
    pip, install, *packages = shlex.split(install_command(extra))
    assert (pip, install) == ("pip", "install")
    stated = (ROOT / "setup.py").read_text("utf-8")
    for package in packages:
        assert f'"{package}"' in stated


def test_nothing_is_installed_from_an_index_that_lacks_it() -> None:
    """Until the first release, which may delete this test and shorten the hints."""
    unknown = re.compile(r"tb_perfadvisor\[|pip install (?:-\S+ )*'?tb_perfadvisor(?![-/]|\.git)\b")
    texts = [
        *ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.sh"),
        *ROOT.glob("tb_perfadvisor/**/*.py"), *ROOT.glob("frontend/src/**/*.ts*"),
    ]  # fmt: skip
    assert len(texts) > 500
    found = [path.name for path in texts if unknown.search(path.read_text("utf-8"))]
    assert found == []
    assert unknown.search("pip install --force-reinstall tb_perfadvisor")
