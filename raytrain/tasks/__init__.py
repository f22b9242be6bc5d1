"""Tasks: a loss, its metrics and their directions."""
