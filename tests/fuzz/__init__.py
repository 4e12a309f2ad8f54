"""Damages profiles in thousands of ways, and checks what every report must keep to.

A case is a number: with the seed of the run, it chooses a small profile, what is changed in it and
how it is packed. So each case can be repeated. `make test` runs as many as a minute allows;

    python -m tests.fuzz --minutes 60 --seed 7

runs as many as an hour allows. Each case that failed becomes a test of its own, drawn as small as
it can be.
"""
