"""What a producer does below `send`: its lane, its place in the buffers, its waits and wakeups.

Private.
"""
