"""`grpo pretrain`."""

from __future__ import annotations

from flows.cli.command import console
from flows.commands.begin import begin


def pretrain() -> None:
    """Make the embedded scenario pack and base model again; takes twenty minutes on two cores.

    Example: grpo pretrain
    """
    home = begin()
    from flows.local.servers import prefect_server
    from grpo.config.pretrain import PretrainConfig

    with prefect_server(home):
        from flows.cli.display import live
        from flows.pretrain import pretrain as flow

        with live(console, iterations=1):
            console.print(f"last loss {flow(PretrainConfig()):.4f} nats a token")
