"""The one durable record of agents and servers."""
