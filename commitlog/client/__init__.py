"""What a program of a user holds: stores, producers, readers, scans, and their statistics."""
