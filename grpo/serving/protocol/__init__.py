"""What a client sends and gets: requests and replies of the HTTP API, which know no server."""
