"""What a number is: tokens that are numbers, numbers in text, and their values."""
