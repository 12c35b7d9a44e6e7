"""What the turns have written, read for people and programs: executions, their attempts, logs and progress.

It never decides, and never asks the leader: what lives (positions, reasons, holders) is in `questions`.
"""
