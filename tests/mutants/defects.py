"""All planted defects: each a bug that somebody of this field has shipped, or that we were afraid of."""

from typing import Final

from tests.mutants.protocol_defects import PROTOCOL_DEFECTS

DEFECTS: Final = (*PROTOCOL_DEFECTS,)
