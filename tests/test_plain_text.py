"""Untrusted names are shown without the characters that terminals obey."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest

from tb_perfadvisor.plain_text import (
    ascii_json,
    plain,
    plain_lines,
    printable_json,
    printable_name,
    shell_word,
)

ESCAPE, BELL, CSI, TURNED = "\x1b", "\x07", "\x9b", "\u202e"


@pytest.mark.parametrize("text", ["aten::mm", "név 名 𝄞", "a\xa0b", ""])
def test_ordinary_text_stays(text: str) -> None:
    assert plain(text) == printable_name(text) == plain_lines(text) == text


@pytest.mark.parametrize("control", [ESCAPE, BELL, CSI, TURNED, "\n", "\u2028", "\ud800", "\x7f"])
def test_controls_become_one_visible_character(control: str) -> None:
    assert plain(f"a{control}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_lines_stay_where_they_are_wanted() -> None:
    assert plain_lines(f"a\n{ESCAPE}b\n") == "a\n\N{REPLACEMENT CHARACTER}b\n"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (f"run{ESCAPE}[2J", r"run\x1b[2J"),
        (f"a{TURNED}b", r"a\u202eb"),
        ("a\nb", r"a\nb"),
        # 0xff is not UTF-8, so Python reads it as U+DCFF (PEP 383).
        (b"bad\xff".decode("utf-8", "surrogateescape"), r"bad\xff"),
        ("half\ud83d", r"half\ud83d"),  # a name on Windows
    ],
)
def test_names_of_files_say_which_character_they_have(name: str, shown: str) -> None:
    assert printable_name(name) == shown


def test_json_keeps_its_meaning_without_controls() -> None:
    names = [f"a{CSI}{TURNED}\u2028\x7f", "név 𝄞", ESCAPE]
    text = json.dumps(names, ensure_ascii=False)
    assert json.loads(printable_json(text)) == names
    assert printable_json(text).isprintable()
    assert json.loads(ascii_json(text)) == names
    assert ascii_json(text).isascii()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("name", ["a b", "it's", f"a{ESCAPE}'\\n\\{TURNED}", "bad\udcff", "a\nb"])
def test_a_shell_reads_the_word_as_the_name(name: str) -> None:
    word = shell_word(name)
    assert word.isprintable()
    done = subprocess.run(
        ["bash", "-c", f"printf %s {word}"],
        capture_output=True,
        check=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert done.stdout == name.encode("utf-8", "surrogateescape")
