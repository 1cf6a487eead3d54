"""The edge: what producers speak to. Takes halves and ends, hands check requests over, turns proposals into discards."""
