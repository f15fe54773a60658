"""A machine that says it clears a page in forked children, and does not, as QEMU 7.2."""

UNWIPED = """
import mmap

class Deaf(mmap.mmap):
    def madvise(self, *advice):
        pass

mmap.mmap = Deaf
"""
"""The begin of a program that runs there."""
