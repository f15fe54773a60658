"""The parts of a producer below `send`: its lane, its place in the buffers, waits and wakeups.

Private.
"""
