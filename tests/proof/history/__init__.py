"""Checks whole histories: independent witnesses record a run, the rules of the promises P1 to P7 check it."""
