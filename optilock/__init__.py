"""optilock."""
