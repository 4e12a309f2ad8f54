"""What users run is declared, licensed, and can be built again from its sources."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRONTEND, STATIC = ROOT / "frontend", ROOT / "tb_perfadvisor" / "static"
# Permissive, and compatible with Apache-2.0.
LICENSES = {"MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0", "0BSD", "Unlicense"}


@pytest.fixture(scope="module")
def locked() -> dict[str, Any]:
    packages: dict[str, Any] = json.loads((FRONTEND / "package-lock.json").read_text())["packages"]
    return packages


def bundled() -> dict[str, tuple[str, str, str]]:
    """Version, license and its text of each package in the bundle."""
    text = (STATIC / "licenses.txt").read_text(encoding="utf-8")
    found = {}
    for part in text.split(f"\n\n{'-' * 72}\n\n")[1:]:
        heading, _, terms = part.partition("\n\n")
        match = re.fullmatch(r"(\S+) (\S+) \((.+)\)", heading)
        assert match is not None, heading
        found[match[1]] = (match[2], match[3], terms.strip())
    return found


def test_an_audit_sees_every_bundled_package(locked: dict[str, Any]) -> None:
    assert len(bundled()) >= 3
    for name, (version, _, _) in bundled().items():
        package = locked[f"node_modules/{name}"]
        assert package["version"] == version
        assert not package.get("dev", False), f"{name} is in the bundle: it is no devDependency"
    manifest = json.loads((FRONTEND / "package.json").read_text())
    assert set(manifest["dependencies"]) <= set(bundled())  # and nothing else is one


def test_every_package_is_pinned_by_its_hash(locked: dict[str, Any]) -> None:
    for name, package in locked.items():
        if name:
            assert package["integrity"].startswith("sha512-"), name


def test_every_bundled_package_has_a_license() -> None:
    for name, (_, license, terms) in bundled().items():
        assert license in LICENSES, name
        assert len(terms) > 300, name
