"""The stage processes: committer, flusher, allocator, dispatcher, and the supervisor that owns
them.

Started as `python -P -m stages.<name>`; a user's program never imports this package.
"""
