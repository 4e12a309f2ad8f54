"""Log directories, and the names of runs in them."""

import ntpath
import os
from pathlib import Path

import pytest
from tensorboard.backend.event_processing import data_ingester

from tb_perfadvisor.ingest.profile_tab import profile_target
from tb_perfadvisor.plugin.log_directories import (
    Root,
    grouped_id,
    grouped_run,
    roots_of,
)


def test_logdir_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    here = os.path.realpath(tmp_path)
    assert roots_of("logs", "") == (Root(f"{here}/logs", ""),)
    assert roots_of("~/x", "") == (Root(f"{here}/x", ""),)
    assert roots_of("", "") == ()


@pytest.mark.parametrize("url", ["gs://bucket/a", "s3://b", "memory://m/x"])
def test_urls_are_kept(url: str) -> None:
    (root,) = roots_of(url, "")
    assert root.path == url
    assert root.is_remote


def test_logdir_spec_has_groups_and_paths() -> None:
    # The rules of data_ingester._parse_event_files_spec. A drive is not a group.
    spec = "n1:/p1,n2:gs://b/c,/a:b,gs://x,C:\\logs,name:/with:colon"
    groups = {root.group: root.path for root in roots_of("", spec) if root.group}
    assert groups == {"n1": "/p1", "n2": "gs://b/c", "name": "/with:colon"}
    unnamed = [root.path for root in roots_of("", spec) if not root.group]
    assert unnamed[:2] == ["/a:b", "gs://x"]
    assert unnamed[2].endswith("C:\\logs")


def test_label_does_not_reveal_the_path() -> None:
    assert Root("/home/someone/secret/runs", "").label == "runs"
    assert Root("/home/someone/runs", "exp").label == "exp"
    assert Root("gs://bucket/a/b/", "").label == "b"


def test_groups_distinguish_equal_runs() -> None:
    assert grouped_run("", "train") == "train"
    assert grouped_run("a", "train") == "a/train"
    assert grouped_run("a", ".") == "a"
    assert grouped_id("", "0123") == "0123"
    assert len({grouped_id(group, "0123") for group in ("", "a", "b")}) == 3


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("plugins/profile/2024_01_01/h1.xplane.pb", ("2024_01_01", "h1")),
        ("a/b/plugins/profile/s/h.local.xplane.pb", ("a/b/s", "h.local")),
        ("plugins/profile/s/deeper/h.xplane.pb", None),
        ("run/h.xplane.pb", None),
        ("plugins/profile/s/h.trace.json.gz", None),
    ],
)
def test_profile_target(path: str, target: tuple[str, str] | None) -> None:
    assert profile_target(path) == target


@pytest.mark.parametrize(
    "spec",
    [
        "name1:/a,name2:gs://b/c",
        "gs://b/c,s3://d",
        "/a",
        "/a:b",
        "relative/dir",
        "name:relative/dir",
        "name:/with:colon",
        "name:~/x,~/y",
        "n:/same,/same",
        "/same,n:/same",
        "my-run:s3://b/c:d",
        "file:///a/b",
    ],
)
def test_logdir_spec_is_split_as_tensorboard_does(spec: str) -> None:
    theirs = data_ingester._parse_event_files_spec(spec)
    ours = {root.path: root.group or None for root in roots_of("", spec)}
    # The plugin turns file URLs into paths.
    assert ours == {path.removeprefix("file://"): name for path, name in theirs.items()}


@pytest.mark.parametrize(
    "spec",
    [
        r"name1:C:\a,name2:gs://b/c",
        r"C:\a",
        "C:/a",
        r"name:\\server\share\logs",
        r"\\server\share\logs",
        r"c:\logs\run,d:\logs",
    ],
)
def test_logdir_spec_on_windows(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "splitdrive", ntpath.splitdrive)
    monkeypatch.setattr(os.path, "realpath", lambda path: path)
    theirs = data_ingester._parse_event_files_spec(spec)
    assert {root.path: root.group or None for root in roots_of("", spec)} == theirs
    assert [root.is_remote for root in roots_of("", spec)] == ["://" in path for path in theirs]


def test_chained_and_file_urls(tmp_path: Path) -> None:
    (chain,) = roots_of("simplecache::s3://bucket/logs", "")
    assert (chain.path, chain.is_remote) == ("simplecache::s3://bucket/logs", True)
    (local,) = roots_of(tmp_path.as_uri(), "")
    assert (local.path, local.is_remote) == (os.path.realpath(tmp_path), False)
