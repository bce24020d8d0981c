"""Method that vLLM adds to its workers with `--worker-extension-cls`: replace the weights in place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

METHOD = "load_rollout_weights"


class WeightLoader:
    """Part of a worker. vLLM makes its class of workers inherit from this one."""

    if TYPE_CHECKING:
        model_runner: Any
        reload_weights: Any

    def load_rollout_weights(self, folder: str) -> None:
        """Load the safetensors of a folder into the model of this worker.

        On a CPU vLLM multiplies by packed copies of the weights. A reload packs each layer that it has loaded. A head
        that shares the embedding's weight is not in the files, so it would keep the packed copy of the weights before.
        """
        from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
        from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
        from vllm.platforms import current_platform

        self.reload_weights(weights_path=folder)
        if current_platform.is_cpu():
            for layer in self.model_runner.get_model().modules():
                if isinstance(layer, ParallelLMHead):
                    dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
