"""Snapshots of a store for the people who run it. All tools share them."""
