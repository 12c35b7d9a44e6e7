"""Actions of the installation that `pictures` shows: some fail, some run until they are cancelled."""

import asyncio

from turnstile.worker import Context, PermanentError, TemporaryError, action

_LONG = "billing.invoices.monthly-statement-with-attachments-and-reminders-for-overdue-customers"


@action("reports.render", max_concurrent=3)
async def render(
    context: Context, report: str = "sales", pages: int = 3, seconds: float = 0.8
) -> dict[str, int]:
    """Log each page, then return their number."""
    for page in range(1, pages + 1):
        await asyncio.sleep(seconds / pages)
        context.logger.info("%s: page %d of %d rendered", report, page, pages)
    return {"pages": pages, "bytes": 48_213 * pages}


@action("mail.send", max_concurrent=10, retry={"max_attempts": 2, "delay": 0.1})
async def send(context: Context, to: str, subject: str = "Your report is ready") -> None:
    """Fail for addresses without a domain, and once for a busy server."""
    if "@" not in to:
        raise PermanentError(
            f"no such mailbox: {to!r} has no domain; the address was imported from the old system"
        )
    if context.attempt == 1 and to.startswith("busy"):
        raise TemporaryError("451 try again later", delay=0.2)


@action(_LONG, max_concurrent=1, concurrency_key="/customer")
async def statement(context: Context, customer: str, seconds: float = 3600) -> None:
    """Run until it is cancelled."""
    context.logger.info("statement of %s begins", customer)
    await asyncio.sleep(seconds)


@action("video.encode", max_concurrent=2)
async def encode(context: Context, title: str, seconds: float = 3600) -> None:
    """Run until it is cancelled."""
    context.logger.info("encoding %s", title)
    context.progress(412, 1800, "frame 412 of 1,800")
    await asyncio.sleep(seconds)
