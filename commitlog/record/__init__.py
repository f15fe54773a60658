"""The bytes of a record in RocketMQ's format, encoded and decoded singly or by columns. Private."""
