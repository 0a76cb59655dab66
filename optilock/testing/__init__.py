"""Tools for tests of concurrent code: step sessions by hand, count statements, private servers."""
