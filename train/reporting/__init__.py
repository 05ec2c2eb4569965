"""Metrics on disk, tables and figures."""
