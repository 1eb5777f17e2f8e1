"""The networks in plain torch; read mlp.py, interaction.py, networks.py in this order."""
