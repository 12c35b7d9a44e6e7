"""What the turns have written, read for people and programs: executions, their attempts, logs and progress.

It never decides. `execution_reader` adds what only the leader knows: position, reason, estimated start.
"""
