"""The user's own modules: where they are, how a run keeps them, how they travel."""
