"""What a group of gates commits about global jobs, and the machine that applies it."""
