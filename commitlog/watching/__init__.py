"""What those who run a store look at: one snapshot of it, which all the tools share."""
