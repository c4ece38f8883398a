"""`gristmill tune`: find the engine's settings and the in-flight limit for one load by short measurements."""
