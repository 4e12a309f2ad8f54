"""A second batch of programs by family, written by someone who had not seen the rules."""
