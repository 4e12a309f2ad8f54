"""Names of kernels, operators, files and calls: what they say, and how to show them.

Equal names mean the same operation, but different names may, too. Libraries pick different variants
of a kernel for different dtypes and sizes (`ampere_sgemm_128x64_tn`, `ampere_sgemm_128x128_tn`).
Compilers and Keras number their operations afresh in each program (`fusion.12`,
`triton_poi_fused_add_3`, `sequential_1/conv2d_3/Relu`).
"""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tb_perfadvisor.patterns import regex
from tb_perfadvisor.trace.integer_groups import distinct, is_in
from tb_perfadvisor.trace.kinds import EventKind
from tb_perfadvisor.trace.tables import Int32
from tb_perfadvisor.trace.trace import Trace

_SEPARATOR = regex(r"([._])")
# Types as spelled in C++ and in the names of library kernels.
_NUMBER_FORMAT = regex(
    r"\b(?:(?<!\w::)(?:\w+::)*(?:__half2?|half(?:_t)?|Half|__nv_bfloat162?|bfloat16(?:_t)?|BFloat16"
    r"|tfloat32_t|Float8\w*)|(?:float|double)[24]?)\b"
    r"|(?<![a-zA-Z])(?:fp|bf|tf|f|e\dm)(?:8|16|32|64|\d)(?![a-zA-Z])"
)
_NUMBERING = regex(r"((?:_\d+)+)([/:]|$)?")
_NUMBER = regex(r"\d+")
_SPACE = regex(r"\s+")
_RETURN_TYPE = regex(r"^void\s+")
_ANONYMOUS = regex(r"\(anonymous namespace\)::|_GLOBAL__N__\w{0,200}::")
_QUALIFIER = regex(r"\b(?:[a-zA-Z_]\w*::)+(?=[a-zA-Z_{])")


def without_number(name: str) -> str:
    """The name of an XLA operation without its number."""
    parts = _SEPARATOR.split(name)
    while len(parts) > 1 and (parts[-1] == "clone" or parts[-1].isdecimal()):
        del parts[-2:]
    return "".join(parts) or name


def variant_key(name: str) -> str:
    """A key that is equal for variants of one kernel: it ignores dtypes, sizes and numbering."""
    key = _ANONYMOUS.sub("", _bare(name))
    # Numbers count only at the end of a part of the name.
    key = _NUMBERING.sub(lambda found: found[0] if found[2] is None else found[2], key)
    key = _NUMBER_FORMAT.sub("T", key)
    return _SPACE.sub("", _NUMBER.sub("#", key))


def unqualified(name: str) -> str:
    """A kernel's name without parameter list and namespaces, but with template arguments."""
    return _QUALIFIER.sub("", _ANONYMOUS.sub("", _bare(name))).replace("> >", ">>") or name


def _bare(name: str) -> str:
    """A demangled name without return type and parameter list."""
    name = _RETURN_TYPE.sub("", name)
    masked = _ANONYMOUS.sub(lambda match: "_" * len(match[0]), name)
    depth = 0
    for index, character in enumerate(masked):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0 and index > 0:
            return name[:index].rstrip()
    return name


_MOST_OF_NAME = 48
_TILES = regex(r"(?<=\w)_[a-zA-Z]*\d+x\d+\S*$")
"""The sizes in the name of a library's kernel, and what follows: `_MT256x208x64_MI16x16x1_…`."""
_ITERATOR = regex(r"^Iterator(?:::\w+)*::(\w+)(?:\[.*\])?$")
"""tf.data names each iterator with all that lie around it: `Iterator::Root::Prefetch::Map`."""
_REPEATED = regex(r"(^|/)(\w+):\2$")
"""TensorFlow names an operation and its type: `random_uniform/RandomUniform:RandomUniform`."""
_PYTHON_FRAME = regex(r"^(.+\.pyx?)\((\d+)\): ")
"""PyTorch's tracer: `models/net.py(57): forward`."""
_BUILT_IN = regex(r"^\$(\w+) (\w+)$")
"""JAX's tracer marks Python by a dollar sign, and gives no file for C functions: `$time sleep`."""
_HASH = regex(r"(?<!\s)\s*\b(?=\w*\d)[a-z0-9]{24,}\b")
_FEWEST = 4
"""A name before `<` or `(` that is shorter is part of a longer one: `<lambda>`."""


@lru_cache(maxsize=4096)
def short_name(name: str) -> str:
    """A name of a kernel, operator or function without C++ types and parameters, and not too long.

    A path keeps its last two parts.
    """
    name = _ANONYMOUS.sub("", _RETURN_TYPE.sub("", name))
    if "::" in name or name.endswith((")", ">")):
        ends = [name.find(mark) for mark in "<(" if name.find(mark) >= _FEWEST]
        # A call of a jitted function names it in parentheses: `PjitFunction(train_step)`.
        if ends and "::" in name:
            name = name[: min(ends)]
    name = _TILES.sub("", name)
    name = _ITERATOR.sub(r"\1", name)
    name = _REPEATED.sub(r"\1\2", name)
    name = _PYTHON_FRAME.sub(r"\1:\2 ", name)
    name = _BUILT_IN.sub(r"\1.\2", name).removeprefix("$")
    if name.count("/") > 1:
        name = "/".join(name.split("/")[-2:])
    return name if len(name) <= _MOST_OF_NAME else f"{name[: _MOST_OF_NAME - 1]}…"


def short_annotation(name: str) -> str:
    """An annotation without ornaments and hashes: `## forward ##`, `Call CompiledFxGraph f4ii…`."""
    return _HASH.sub("", name.strip("# ")).strip() or name


GENERATED_FILE = regex(
    r"(?:^|[/\\])(?:torchinductor_[^/\\]{1,64}[/\\]|([a-z2-7]{2})[/\\]c\1[a-z2-7]{20,64}\.py\b)"
)
"""A path in Inductor's cache: below `torchinductor_USER`, or `ov/cov463….py` in a directory that
the user chose. A file's name is `c` and a hash in base 32; its directory is the hash's first two
characters (torch/_inductor/codecache.py, `get_path`)."""


GENERATED_KERNEL = regex(r"triton_(?:poi|per|red|for|tem)_fused|triton__\d")
"""A kernel that Inductor generated. The second is the name before PyTorch 2.2:
torch/_inductor/config.py, `descriptive_names`."""


def is_generated(path: str) -> bool:
    """Whether a path, or a frame that begins with one, is of a generated file."""
    return GENERATED_FILE.search(path) is not None


_FRAMEWORK_FILE = regex(
    r"(^|/)(torch|tensorflow|keras|jax|jaxlib|flax|numpy)/|(site|dist)-packages/|^<frozen"
    r"|(^|/)tb_perfadvisor/(instrument|cli)/"
    r"|^(step_hooks|hook|recorders|jax_session|program_loops|loop_finder|(jax|time|loopless)_windows)\.py$"
    r"|(^|/)(threading|contextlib|runpy|functools)\.py$|(^|/)(api|pjit|profiler|array|dispatch|ufunc_api|core|traceback_util|pxla)\.py$"
    # XLA's tracer leaves directories out: JAX's and NumPy's own files by name.
    r"|^(tree_util|array_methods|array_constructors|api_util|stages|partial_eval|linear_util"
    r"|compiler|mlir|xla_bridge|lax_numpy|tensor_contractions|reductions|indexing|ufuncs|literals"
    r"|numeric|shape_base|multiarray|fromnumeric|_methods)\.py$"
)


def is_framework_file(path: str) -> bool:
    """Whether a path, with forward slashes, is of a framework or the standard library."""
    return _FRAMEWORK_FILE.search(path) is not None


BLOCKING_CALL = regex(
    r"^(?:p?poll|select|epoll_wait|read|recv(?:from|msg)?|futex|sem_\w*wait|pthread_cond_\w*wait)$"
    r"|^<built-in (?:function|method) (?:acquire|poll|select)\b|^\$[^:]+ (?:acquire|poll|select)$"
    r"|\b(?:threading|connection|synchronize|selectors|queues?|pool|_base|asyncio/\w+)\.py"
    r"(?:\(\d+\):|:\d+) (?:wait|_?recv|recv_bytes|poll|select|get|result)$"
)
"""A call of the operating system, or of Python, in which a thread waits for another thread or
process."""


def named(trace: Trace, rows: Int32, pattern: re.Pattern[str]) -> NDArray[np.bool_]:
    """Which events have a name that contains the pattern; shape (n,)."""
    names = trace.events.name[rows]
    return is_in(names, [n for n in distinct(names).tolist() if pattern.search(trace.strings[n])])


def rows_named(trace: Trace, pattern: re.Pattern[str], *kinds: EventKind) -> Int32:
    """The events of some kinds whose name contains a pattern, in order of start."""
    rows = trace.rows(*kinds)
    return rows[named(trace, rows, pattern)]
