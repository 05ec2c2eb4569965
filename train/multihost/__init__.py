"""One run on several hosts."""
