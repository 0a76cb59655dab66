"""What a mapped class says of itself and of its rows.

:mod:`~optilock.mapped.facts` is the record of what is known of a mapper, made once.
:mod:`~optilock.mapped.keys` says which row is meant.
"""
