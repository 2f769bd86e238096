"""All trials of a run: trained together, compared, and ended rung by rung."""
