"""Copies of a store on other machines, which follow it over TLS and can take its place.

Private. The store's side of it is in `stages/replicating/`.
"""
