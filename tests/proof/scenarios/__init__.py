"""Runs what docs/scenarios.md names, as it stands there, several times over. Next: `page`, `__main__`."""
