"""Shared memory: named regions, the words in them, and the write buffers of the transient store
pool.

Knows nothing of messages, files of the log or ZeroMQ; imports the standard library and numpy only.
"""
