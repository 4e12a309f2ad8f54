from __future__ import annotations

import io

from tb_perfadvisor.ingest.compile_log.reader import read_compile_log
from tb_perfadvisor.rules.finding import Table
from tb_perfadvisor.rules.launch.compilation import LongCompilation
from tb_perfadvisor.testing import check_rule, draw, find
from tb_perfadvisor.trace import Source, Trace
from tests.support.compile_logs import compiled, example_log

TRACE = """
    cell 1ms
    step   |....|....|....|
    main   |oo..|oo..|oo..|
    gpu 7  |.KK.|.KK.|.KK.|
"""


def log(data: bytes) -> Trace:
    return read_compile_log(io.BytesIO(data), Source(path="run/log", format="torch-compile-log"))


def test_says_what_was_compiled_and_what_the_caches_had() -> None:
    short = log(compiled("0/0", "forward", 9, duration_us=300_000))
    checked = check_rule(LongCompilation, slow=log(example_log()), fixed=short, scales=False)
    (finding,) = checked.findings
    # 2 s, 1.5 s of backward, and 0.5 s; one hit in three.
    assert finding.instance == "2 compilations took 4.00 s"
    assert "its caches had what was needed 1 of 3 times" in finding.summary
    tables = [each for each in finding.evidence if isinstance(each, Table)]
    functions, phases, caches = tables
    assert functions.rows == (
        ("forward", "project/train.py:9", 2, 16 * 10**8, 15 * 10**8, 4 * 10**9),
    )
    assert phases.rows[0] == ("inductor_compile", 1, 14 * 10**8)
    assert [row[:4] for row in caches.rows] == [
        ("Inductor (FX graphs)", 1, 1, 0),
        ("AOTAutograd", 0, 1, 0),
    ]


def test_just_below_and_just_above_the_limit() -> None:
    assert find(LongCompilation, log(compiled("0/0", "f", 1, duration_us=1_999_999))) == ()
    assert find(LongCompilation, log(compiled("0/0", "f", 1, duration_us=2_000_000)))


def test_without_a_log_it_is_not_applicable() -> None:
    assert find(LongCompilation, draw(TRACE)) is None
