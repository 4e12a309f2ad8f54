"""Remedies that several rules give, one module for each subject.

All remedies for the same `change` lie here, so that no two rules propose different code for it.
"""
