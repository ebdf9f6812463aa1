"""Shapes of the hub's Qwen3.5 text models, known without a network: for plans and for benchmarks."""

SHAPES = {
    "Qwen/Qwen3.5-2B": dict(
        hidden_size=2048, intermediate_size=6144, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2,
        linear_num_value_heads=16,
    ),
    "Qwen/Qwen3.5-4B": dict(
        hidden_size=2560, intermediate_size=9216, num_hidden_layers=32, num_attention_heads=16, num_key_value_heads=4,
        linear_num_value_heads=32,
    ),
}  # fmt: skip
COMMON = dict(
    vocab_size=248_320, head_dim=256, linear_num_key_heads=16, linear_key_head_dim=128, linear_value_head_dim=128,
    full_attention_interval=4, max_position_embeddings=32_768, tie_word_embeddings=True,
)  # fmt: skip


def known_config(name: str, **other):
    """The configuration of the text model `name` of `SHAPES`; `other` fields replace its own."""
    from transformers import Qwen3_5TextConfig

    return Qwen3_5TextConfig(**(COMMON | SHAPES[name] | other))
