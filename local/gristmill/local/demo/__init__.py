"""`gristmill demo`: run a whole Gristmill on one machine once, and stop all of it afterwards."""
