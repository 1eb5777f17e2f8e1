"""One sample on many ranks; read partition.py, cuts.py, parts.py, halo.py, shard.py in this order."""
