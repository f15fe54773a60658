"""How a store comes back at a start: with its pool (adoption) or from its files (recovery).

Private.
"""
