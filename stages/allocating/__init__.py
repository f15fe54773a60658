"""What the allocator does besides making segments: retention, and a look at the pool."""
