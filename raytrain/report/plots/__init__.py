"""The pictures of a sweep, a file each: `draw` gives one, or None where too few trials have the figures for it."""
