"""The stage processes (committer, flusher, allocator, dispatcher) and their supervisor.

The supervisor is started as `python -P -m commitlog.stages.supervisor` and forks the others. A
user's program never imports this package.
"""
