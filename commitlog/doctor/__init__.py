"""What `commitlog doctor` checks: this machine, this Python, Spark's surroundings, a store.

Each check is a function of `Surroundings` and yields findings. It changes nothing that stays.
"""
