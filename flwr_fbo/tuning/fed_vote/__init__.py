"""FedVote: agents vote for regions, and follow the noisy count."""
