"""Turns a store's files and positions into messages. Private.

Limits, indexes, walks and scans of the log, and named readers are here.
"""
