"""The commands that install what optional features need."""

from __future__ import annotations

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import shell_line

_EXTRA = regex(r"""\bextra == ["']([\w-]+)["']""")


def install_command(extra: str) -> str:
    """The command that installs the packages of an extra.

    It names these packages, not the extra of ours: so it works for a package that came from a clone
    or as a wheel, which no index has.
    """
    packages = []
    for requirement in _requirements():
        package, _, marker = requirement.partition(";")
        if extra in _EXTRA.findall(marker):
            packages.append(package.strip())
    if not packages:  # the package is not installed but on the path
        return f"pip install '.[{extra}]' in a clone of the repository"
    return f"pip install {shell_line(packages)}"


def _requirements() -> list[str]:
    from importlib import metadata  # slow, and only messages need it

    try:
        return metadata.requires("tb_perfadvisor") or []
    except metadata.PackageNotFoundError:
        return []
