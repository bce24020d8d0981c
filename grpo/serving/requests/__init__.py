"""From a request to its logged reply: conversations, places, capacity."""
