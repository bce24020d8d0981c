"""`grpo pretrain`."""

from __future__ import annotations

from flows.commands.arguments import console
from flows.commands.begin import begin


def pretrain() -> None:
    """Make the embedded scenario pack and base model again; takes twenty minutes on two cores.

    Example: grpo pretrain
    """
    home = begin()
    from flows.stack.servers import prefect_server
    from grpo.config.pretrain import PretrainConfig

    with prefect_server(home):
        from flows.pretrain import pretrain as flow
        from flows.terminal import live

        with live(console, iterations=1):
            console.print(f"last loss {flow(PretrainConfig()):.4f} nats a token")
