"""``python -m optilock`` is the program ``optilock``."""

import optilock.cli

if __name__ == "__main__":
    optilock.cli.main()
