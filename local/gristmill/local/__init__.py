"""Run a whole Gristmill on one machine: embedded server, small model, demo."""
