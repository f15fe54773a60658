"""The only door to the disk, with locks and RocketMQ's files. Private."""
