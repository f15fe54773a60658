"""A machine that does not keep the order of stores, as far as our code asks."""

WEAK = "import platform; platform.machine = lambda: 'weak'\n"
"""The begin of a program that runs there."""
