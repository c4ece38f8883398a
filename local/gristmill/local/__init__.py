"""What runs a whole Gristmill on one machine: an embedded server, a small model, the demo."""
