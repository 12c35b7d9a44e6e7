"""One module for each system: its jobs in its own style, and how they are submitted.

Each is imported only by that system's worker processes and by `submitter`, so only there its package is
required. All use the same actions and the same job (`peers.job`).
"""
