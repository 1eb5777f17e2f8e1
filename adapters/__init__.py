"""One package per host, one for what knows both; each imports the core and never another adapter."""
