"""Checkpoints on disk and in storage at a URL."""
