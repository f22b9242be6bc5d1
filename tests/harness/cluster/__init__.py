"""Clusters of hosts that are namespaces of this machine."""
