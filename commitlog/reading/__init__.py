"""Turns a store's files and positions into messages. Private.

This package has the limits, the indexes, the walks and scans of the log, and the named readers.
"""
