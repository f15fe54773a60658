"""Backups of a store: a second directory that is brought up to date and can be opened in its place.

Private.
"""
