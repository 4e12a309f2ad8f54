"""Looks at the tensors of a few steps: what is computed again, multiplied by zero, or dropped.

A profile shows how long an operator takes, but not whether its result is needed. So after the first
recording, a few steps of a PyTorch program run under a mode of PyTorch's dispatcher that sees each
operator with its inputs. It changes nothing: every operator is called as it is.
"""
