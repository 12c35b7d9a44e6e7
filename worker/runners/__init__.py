"""The ways in which an action is run; `base` is the contract, `registry` chooses one.

in_loop   async functions, as tasks of the worker's event loop
child     plain functions, each in a child process of a pool
command   an argv, in a process group of its own
http      a POST to a URL

Every process of a run is started and ended through `supervisor`.
"""
