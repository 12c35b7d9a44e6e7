"""Measures a recorded scenario: its rate, hand-overs, peaks, and the recovery from faults. Pure."""
