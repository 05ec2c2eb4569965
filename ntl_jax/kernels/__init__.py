"""Fast programs, each beside a plain reference and the place where one is chosen."""
