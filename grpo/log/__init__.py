"""Log of a served policy: turns and feedback, their files, and the conversations that they join to.

`append(folder, conversations)` writes the conversations of another server.
"""

from grpo.log.conversation import LoggedConversation, LoggedIds, append, append_conversation
from grpo.log.writer import ServingLog

__all__ = ["LoggedConversation", "LoggedIds", "ServingLog", "append", "append_conversation"]
