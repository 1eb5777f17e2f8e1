"""Side by side with the hosts: one command each, a table out."""
