"""All planted defects: each a bug that somebody of this field has shipped, or that we were afraid of."""

from typing import Final

from tests.proof.mutants.protocol_defects import PROTOCOL_DEFECTS
from tests.proof.mutants.service_defects import SERVICE_DEFECTS

DEFECTS: Final = (*PROTOCOL_DEFECTS, *SERVICE_DEFECTS)
