"""Shared memory: named regions, the words in them, and the write buffers of a lane.

This package knows nothing of messages, of the log's files or of ZeroMQ. It imports the standard
library and numpy only.
"""
