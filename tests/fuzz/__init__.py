"""Damages files in thousands of ways, and checks what must hold whatever is in them.

A case is a format and a number: with the seed of the run, they choose a small file, what is changed
in it and how it is packed. So each case can be repeated. `make test` runs as many as a minute
allows;

    python -m tests.fuzz --minutes 60 --seed 7 --format xplane

runs as many as an hour allows, of all formats unless one is named. Each case that failed becomes a
test of its own, drawn as small as it can be.

To add a format, write a module in `formats/` with a `Format`, and add a line to
`formats/__init__.py`. `formats/chrome.py` is the smallest example.

    format.py            what a format tells the fuzzer
    formats/             one module per format: its valid files, made by code
    *_changes.py         ways to damage JSON, messages (also by schema), instructions, values, bytes
    *_checks.py          what must hold for reports, and for descriptions of training runs
    cases.py             from a number to a damaged file
    __main__.py          the long run
"""
