"""Programs around optilock: the demo, the wiki, and private database servers for tests.

They are the second top-level package of the distribution, so that ``pip install "optilock[demo]"``
brings a command that runs. No module of optilock imports them; ``optilock.cli`` names the commands.
"""
