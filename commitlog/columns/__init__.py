"""Slices of a log as Arrow columns. Private."""
