"""Calculate how many requests and tokens the engine has room for.

`room.py` is the public module; the others are its parts.
"""
