"""What the HAService does for each peer: what may leave the machine, how it travels, who has it."""
