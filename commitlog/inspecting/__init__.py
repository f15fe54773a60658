"""Looking at a store without touching it: verify, dump, profiles. Private."""
