"""The stage processes (committer, flusher, allocator, dispatcher) and their supervisor.

Each is started as `python -P -m commitlog.stages.<name>`. A user's program never imports this
package.
"""
