"""`gristmill demo`: run a whole Gristmill on one machine once, then stop all of its processes."""
