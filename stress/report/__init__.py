"""Shows a run: live, then as a summary on the console, as JSON, and as one HTML page with pictures.

`run_report` holds the values, `live` shows progress, `summary` prints the result, `documents` makes
`report.json` and `report.html`, `store` writes them, and `charts` draws the pictures.
"""
