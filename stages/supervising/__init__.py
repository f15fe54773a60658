"""The parts of the supervisor: opening a store, watching its stages, stopping it."""
