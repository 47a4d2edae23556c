"""tasksched: durable task scheduling on Redis."""
