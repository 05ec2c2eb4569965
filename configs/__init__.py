"""Presets: one file an experiment, found by module name."""
