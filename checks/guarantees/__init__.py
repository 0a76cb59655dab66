"""docs/reference/guarantees.md: which anomalies are possible, by engine, level and protection."""
