"""Off-policy evaluation: what another policy would have earned at a site."""
