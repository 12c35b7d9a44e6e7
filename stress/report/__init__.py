"""Shows a run: live while it goes on, then as a table, as JSON, and as one page with pictures.

In: `Progress` while it runs, then a `RunReport`. Out: lines on a console, and a folder with `report.json`,
`report.html` (one file that needs nothing else) and its pictures as PNG. A reader starts at `run_report`,
what a run comes to; `live` shows it on the way, `summary` at its end, `write` keeps it; `plots` draws.
"""
