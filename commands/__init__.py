"""What main.py is told to do, one command each; texts for stdout are returned to it."""
