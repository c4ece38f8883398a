"""Calculate how much of the queue the engine has room for.

`room.py` is the public module; the others are its parts.
"""
