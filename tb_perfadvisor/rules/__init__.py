"""One rule, one file: each reads signals and yields findings."""
