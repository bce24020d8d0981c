"""Log of a served policy: turns and feedback, their files, and the conversations that they join to."""
