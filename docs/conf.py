"""The site: these pages. `make docs` builds it."""

project = "Turnstile"
html_title = "Turnstile"
author = "The Turnstile authors"
project_copyright = "2026, The Turnstile authors"
extensions = ["myst_parser"]
exclude_patterns = ["_build", "generate"]
html_theme = "furo"
html_show_sphinx = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
# Blocks of a shell or of text, not of Python.
highlight_language = "none"
