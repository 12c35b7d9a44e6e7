"""Shows a run: `live` while it goes on, `summary` as text when it is over, `store` in files.

`run_report` holds the values.
"""
