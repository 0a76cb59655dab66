"""The same pages behind each framework: one model, one meaning, four small applications.

:mod:`pages` has the model, and what a method does to a page, whatever the framework.
"""
