"""The producer's commands, a module a group; each is an entry point of `gristmill.commands`.

Their tops import click and little else, so that listing them is quick.
"""
