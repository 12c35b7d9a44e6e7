"""The site: these pages, and a reference written from the code at each build. `make docs` builds it."""

import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE), str(_HERE.parent)]

from generate import write_reference  # noqa: E402

write_reference(_HERE / "reference")

project = "Turnstile"
html_title = "Turnstile"
author = "The Turnstile authors"
project_copyright = "2026, The Turnstile authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
exclude_patterns = ["_build", "generate"]
html_theme = "furo"
html_show_sphinx = False

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
# Blocks of a shell or of text, not of Python.
highlight_language = "none"

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True}
