"""`python -m benchmarks.peers`."""

from benchmarks.peers.command import main

main()
