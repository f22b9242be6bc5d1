"""The peers, each as its own documentation shows it."""
