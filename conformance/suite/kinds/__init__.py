"""How each kind of layer is drawn, by recurrence."""
