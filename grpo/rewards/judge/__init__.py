"""LLM judge: prompt, client, parsing of verdicts, cache, budget, rubrics, and the rewards that use it."""
