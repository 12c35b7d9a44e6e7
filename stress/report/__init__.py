"""Shows a run: live, then as a summary on the console, as JSON, and as one HTML page with pictures.

`run_report` holds the values, `live` shows progress, `summary` prints the result, `store` writes the files,
and `charts` draws the pictures.
"""
