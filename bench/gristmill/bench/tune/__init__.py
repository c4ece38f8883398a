"""`gristmill tune`: the engine's settings and the in-flight limit for one load, found by short runs."""
