"""Presets: one file per experiment, found by module name."""
