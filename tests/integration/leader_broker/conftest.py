"""A database with the tables of the ledger, for the tests that run a whole leader."""

from tests.integration.leader.conftest import ledger, ledger_template, ledger_url, other

__all__ = ["ledger", "ledger_template", "ledger_url", "other"]
