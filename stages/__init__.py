"""The stage processes: committer, flusher, allocator, dispatcher, and the supervisor that owns them.

Each is started as `python -P -m commitlog.stages.<name>`. A user's program never imports this
package.
"""
