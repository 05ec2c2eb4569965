"""Generated answers and their scores."""
