"""Headers that are text: what carries them reads their bytes as Latin-1, whatever their sender meant."""

from typing import Annotated, TypeAlias

from pydantic import AfterValidator


def in_utf8(header: str) -> str:
    """Return a header as its sender wrote it; raises ValueError where that is not UTF-8."""
    try:
        return header.encode("latin-1").decode()
    except UnicodeError:
        raise ValueError("not text in UTF-8; send it as such, or use letters and digits only") from None


InUtf8: TypeAlias = Annotated[str, AfterValidator(in_utf8)]
