"""Count the lines and words of a text file: what the action `files.count_words` runs.

In: {"path": "..."} on stdin. Out: {"lines": ..., "words": ...} on stdout. It knows nothing of Turnstile.
"""

import json
import sys
from pathlib import Path

path = Path(json.load(sys.stdin)["path"])
lines = words = 0
with path.open(encoding="utf-8") as text:
    for line in text:
        lines += 1
        words += len(line.split())
json.dump({"lines": lines, "words": words}, sys.stdout)
