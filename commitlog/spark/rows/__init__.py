"""Records into Arrow columns for Spark, and rows of Spark into messages. Private."""
