"""Two actions over text files: a command of limit 2 and a Python function of limit 3.

worker serve --actions examples.actions
executor submit files.digest path=/etc/hostname --wait
"""

import hashlib
import sys
import zlib
from pathlib import Path

from turnstile import action, command_action

# Any program will do: it reads its parameters as JSON on stdin and writes its result as JSON on stdout.
command_action(
    "files.count_words",
    argv=[sys.executable, "-I", "-S", str(Path(__file__).with_name("count_words.py"))],
    max_concurrent=2,
    timeout="1m",
)


@action("files.digest", max_concurrent=3, timeout="1m")
def digest(path: Path) -> dict[str, str | int]:
    """Return the SHA-256 of a file, its size, and its size when compressed."""
    content = path.read_bytes()
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "compressed_bytes": len(zlib.compress(content, level=9)),
    }
