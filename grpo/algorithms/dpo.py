"""DPO: of siblings the best is preferred to the worst, relative to the reference policy (arXiv 2305.18290)."""

from grpo.algorithms.algorithm import Algorithm

DPO = Algorithm(name="dpo", update="preferences")
