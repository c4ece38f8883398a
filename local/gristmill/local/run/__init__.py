"""`gristmill run`: start workers, run a file or a table on them, stop all processes."""
