"""The protocol, one SQL file per statement: a reader of this folder has read the scheduler."""
