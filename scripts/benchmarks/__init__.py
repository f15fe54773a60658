"""The benchmarks: this log side by side with what people would use instead.

`scripts/bench --help` says how to run them.
"""
