"""The live view of one queue on a terminal; `gristmill top` runs it. Only `screen.py` knows Textual.

commands    the command
columns     tables that fit the width of the terminal
pages       the content of the five pages, from the read model of `overview/`
screen      the terminal: keys, refreshes, messages while Redis does not answer
"""
