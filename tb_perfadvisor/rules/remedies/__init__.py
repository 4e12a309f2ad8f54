"""Remedies that several rules give: one folder per category, one module per subject.

All remedies for the same `change` lie here, so that no two rules propose different code for it.
"""
