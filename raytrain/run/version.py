"""The version of raytrain. Every run records it in its environment.json; the package's metadata takes it from here."""

VERSION = "0.1.0"
