"""prover_mini: GRPO and ProVer for LLM agents, in a size that one person can read."""
