"""Programs around optilock that no application imports: the demo, the wiki, and database servers
for tests.
"""
