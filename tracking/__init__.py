"""Tracking: runs that are recorded, supervised and looked at."""
