"""Rules, by category and idea: each reads signals and yields findings."""
