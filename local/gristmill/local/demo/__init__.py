"""`gristmill demo`: a whole Gristmill on one machine, from nothing to answers, with nothing left behind."""
