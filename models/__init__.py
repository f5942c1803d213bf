"""The network, in named dimensions only."""
