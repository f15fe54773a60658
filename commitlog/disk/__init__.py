"""Files: the one door to the disk, locks, and RocketMQ's files on it. Private."""
