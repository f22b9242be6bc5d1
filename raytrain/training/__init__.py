"""One rank of a run: the trainer and what it is made of. Nothing here knows Ray."""
