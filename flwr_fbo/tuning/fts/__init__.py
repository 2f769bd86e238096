"""FTS: agents follow single vectors that the server relays."""
