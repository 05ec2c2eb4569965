"""Models that read or answer numbers as numbers, to compare with."""
