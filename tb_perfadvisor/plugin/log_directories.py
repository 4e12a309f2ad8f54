"""The log directories that TensorBoard was started with, and names of runs and captures in them."""

from __future__ import annotations

import hashlib
import os
import re

from msgspec import Struct

from tb_perfadvisor.ingest.files.tree import is_url, local_path
from tb_perfadvisor.patterns import regex
from tb_perfadvisor.plain_text import printable_name

_URI = regex("[a-zA-Z][0-9a-zA-Z.+-]+://")


class Root(Struct, frozen=True):
    """One log directory."""

    path: str
    """Absolute, or a URL."""
    group: str
    """The prefix of the names of its runs; empty with `--logdir`."""
    boundary: str = ""
    """The directory that its files must lie in; empty if links may lead anywhere."""

    @property
    def is_remote(self) -> bool:
        """Whether it is in an object store."""
        return is_url(self.path)

    @property
    def label(self) -> str:
        """A name for the tab that does not reveal the path."""
        name = self.group or re.split(r"[/\\]", self.path.rstrip("/\\"))[-1] or self.path
        return printable_name(name)


class Surroundings(Struct, frozen=True):
    """How TensorBoard was started."""

    logdir: str
    """`--logdir` as given."""
    roots: tuple[Root, ...]
    has_profile_plugin: bool

    @property
    def shows_in_profile_tab(self) -> bool:
        """Whether the Profile tab finds any run: it reads only --logdir, without expanding `~`."""
        return self.has_profile_plugin and bool(self.logdir) and not self.logdir.startswith("~")


def roots_of(logdir: str, logdir_spec: str, *, stays_inside: bool = False) -> tuple[Root, ...]:
    """The log directories that TensorBoard was started with.

    `logdir_spec` is `name:path,…`, split as TensorBoard does. With `stays_inside`, links that lead
    out of a log directory are refused.
    """
    if logdir:
        return (_root(logdir, "", stays_inside=stays_inside),)
    roots: dict[str, Root] = {}
    for specification in logdir_spec.split(",") if logdir_spec else ():
        group, path = "", specification
        is_plain = (
            _URI.match(specification) is not None
            or specification.startswith("/")
            or os.path.splitdrive(specification)[0] != ""
            # A Windows drive is not a group, whatever the system.
            or re.match(r"[A-Za-z]:\\", specification) is not None
        )
        if not is_plain and ":" in specification:
            group, _, path = specification.partition(":")
        if path:
            root = _root(path, printable_name(group), stays_inside=stays_inside)
            roots[root.path] = root
    return tuple(roots.values())


def grouped_run(group: str, run: str) -> str:
    """The name of a run with its group as prefix, as TensorBoard shows it."""
    if not group:
        return run
    return group if run in ("", ".") else f"{group}/{run}"


def grouped_id(group: str, capture_id: str) -> str:
    """An id that differs between groups, which may contain the same relative paths."""
    if not group:
        return capture_id
    return hashlib.sha256(f"{group}\0{capture_id}".encode()).hexdigest()[:12]


def _root(path: str, group: str, *, stays_inside: bool) -> Root:
    if is_url(path):
        return Root(path, group)
    resolved = os.path.realpath(local_path(path))
    return Root(resolved, group, resolved if stays_inside else "")
