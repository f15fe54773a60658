"""The bytes of a record: RocketMQ's format, encoded and decoded one at a time or by columns. Private."""
