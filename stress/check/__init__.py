"""Checks a history: which promises it breaks, and where. Pure.

`gates` replays grants, frees and waits from any source, one gate at a time; `rules.check_recording` judges a
`Recording`, with numpy where a rule needs no state; each other module holds the rules on one subject.
`history` counts over plain numbers.
"""
