"""docs/guarantees.md: which anomalies are possible, by engine, isolation level and protection."""
