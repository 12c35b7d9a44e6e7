"""Checks a recorded scenario: which promises its history breaks, and where.

`rules.check_recording` judges a `Recording` with numpy, a million executions in well under a minute; each
other module holds the rules on one subject. `history` counts over plain numbers, without numpy. All of it is
pure.
"""
