"""Where and how a run happens: devices, cluster, checkpoints, logging, command line."""
