"""A store as a web page for the one who runs it: read-only, on this machine only."""
