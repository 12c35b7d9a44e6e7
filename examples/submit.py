"""Submit an action by its function, and follow it to its result. Needs TURNSTILE_API_URL alone.

python -m examples.submit /etc/hostname
"""

import asyncio
import sys
from pathlib import Path

from examples.actions import digest


async def main(path: Path) -> None:
    handle = await digest.with_options(priority=2).submit(path=path)
    async for event in handle.events():
        print(handle.id, event.status)
    print(await handle.result())


asyncio.run(main(Path(sys.argv[1])))
