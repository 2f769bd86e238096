"""The client's half: `tuner_mod`, and what leaves a site."""
