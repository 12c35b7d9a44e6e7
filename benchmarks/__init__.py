"""What this machine makes of Turnstile: figures and ratios of one run, printed, never tested against a clock.

`make bench` runs all parts on private servers of their own; `python -m benchmarks --help` tells the rest.
Absolute figures drift from machine to machine: read the ratios, which compare neighbours within one run.
"""
