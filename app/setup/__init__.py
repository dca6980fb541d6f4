"""Making the environment that everything else runs in: used by launch.py before anything is installed.

May import the standard library alone, and no other folder: when this runs there is nothing else.
"""
