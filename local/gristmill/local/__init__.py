"""Run all parts of Gristmill on one machine: embedded Redis, small model, demo."""
