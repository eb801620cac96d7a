"""Campaigns on clusters of several nodes of this machine."""
