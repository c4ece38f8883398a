"""Exit codes of a worker's process; docs/operations.md lists them."""

EXIT_OK = 0
"""The worker drained."""

EXIT_ENGINE = 1
"""The engine did not start, or kept dying."""

EXIT_SETTINGS = 2
"""A setting is wrong, or Redis refuses."""
