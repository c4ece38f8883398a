"""The live view of one queue on a terminal; `gristmill top` runs it. Only `screen.py` knows Textual.

columns     tables that fit the width of the terminal; figures in words
pages       what each of the five pages shows, from the read model of `overview/`
screen      the terminal: keys, looks every two seconds, Redis that is away
"""
