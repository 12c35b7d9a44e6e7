"""Benchmarks on this machine: metrics and ratios of one run, printed, never tested against a clock.

`make bench` runs all parts on private servers; `python -m benchmarks --help` lists the options. Absolute
values differ between machines; the ratios compare neighbours within one run.
"""
