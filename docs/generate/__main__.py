"""`python -m generate FOLDER`, in `docs`: write the reference there."""

import sys
from pathlib import Path

from generate import write_reference

write_reference(Path(sys.argv[1]))
