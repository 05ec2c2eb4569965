"""Compiling ahead of time for devices that are not here."""
