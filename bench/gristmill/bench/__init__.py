"""`gristmill bench`: one load through several policies on one engine, measured and drawn."""
