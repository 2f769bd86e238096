"""How the trials of a rung are compared: four choosers behind one interface."""
