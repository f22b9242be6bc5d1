"""Searching for hyper-parameters."""
