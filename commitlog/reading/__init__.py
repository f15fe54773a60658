"""From a store's files and positions to messages: limits, indexes, walks and scans of the log, named readers. Private."""
