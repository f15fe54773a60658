"""`commitlog demo`: three producers, two live tables of what they send, and keys that kill.

Each process may be killed at any moment, and what was accepted is in the log, once.
"""
