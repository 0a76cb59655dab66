"""docs/reference/not-protected.md: what becomes of each way to write, by what a program adds."""
