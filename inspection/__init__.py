"""Looking before running: dry run and dataset check."""
