"""Messages, tools and calls as other programs write them, rewritten into the format of OpenAI."""
