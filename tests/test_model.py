"""Loading: the hub's layouts, what the headers tell before the weights are read, which implementations are used."""

import json

import pytest
import torch
from safetensors.torch import save_file

from prover_mini import memory, model, parallel
from prover_mini.errors import UserError
from prover_mini.model import load_policy, parameter_count, paths, use_flash_attention
from tests.hub import hub_checkpoint
from tests.tiny_models import build
from tests.toys import WORDS, toy_config, toy_model, toy_tokenizer

CPU = torch.device("cpu")
GIB = 2**30


def test_the_text_model_of_a_hub_checkpoint_is_read(tmp_path):
    """Names without the outer model's prefix, tied head, no vision and drafting parts, exact decays."""
    expected = hub_checkpoint(tmp_path / "hub")
    policy, tokenizer = load_policy(tmp_path / "hub", "float32", CPU)
    found = dict(policy.named_parameters())
    assert set(found) == set(expected) and type(policy).__name__ == "Qwen3_5ForCausalLM"
    assert all(torch.equal(found[name], tensor.float()) for name, tensor in expected.items())
    assert policy.lm_head.weight is policy.model.embed_tokens.weight and len(tokenizer) == len(WORDS)
    assert parameter_count(tmp_path / "hub") == sum(p.numel() for p in policy.parameters())


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "hybrid"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_model_in_several_files_is_read_exactly(architecture, dtype, tmp_path):
    """Tied and untied, in either type."""
    source = build(architecture, 0.2, vocab_size=len(WORDS))
    for p in source.parameters():
        p.data = p.data.to(getattr(torch, dtype))
    source.save_pretrained(tmp_path, max_shard_size="10KB")
    toy_tokenizer().save_pretrained(tmp_path)
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    for p in source.parameters():
        p.data = p.data.float()
    weights, _ = parallel.load(str(tmp_path), toy_config(), CPU)
    assert parameter_count(tmp_path) == sum(p.numel() for p in weights.model.parameters())
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert torch.equal(weights.model(ids).logits, source(ids).logits)


def test_a_model_that_does_not_fit_is_refused_with_the_numbers_before_it_is_read(tmp_path, monkeypatch):
    """Headers of a model of 4 billion parameters, without a byte of its weights."""
    toy_model().config.save_pretrained(tmp_path)
    weight = {"dtype": "BF16", "shape": [4_000_000, 1000], "data_offsets": [0, 8_000_000_000]}
    header = json.dumps({"w": weight}).encode()
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 8_000_000_000)
    monkeypatch.setattr(memory, "_device_memory", lambda device: (40 * GIB, 80 * GIB))
    monkeypatch.setattr(model, "load_policy", lambda *a: pytest.fail("its weights were read"))
    with pytest.raises(UserError) as error:
        parallel.load(str(tmp_path), toy_config(dtype="bfloat16"), CPU)
    text = str(error.value)
    assert "4.00 billion parameters" in text and "67.1 GiB" in text and "40.0 GiB are free" in text and "\n" not in text
    assert "AdamW 29.8" in text and "--parallel shard" in text


def test_memory_of_the_training_state():
    """16 bytes per parameter, and the weights of the rollouts where they are not the float32 ones themselves."""
    def total(*arguments):
        return sum(memory.training_bytes(*arguments).values())

    assert total(10**9, "float32", 1) == 16e9 and total(10**9, "bfloat16", 1) == 18e9
    assert total(10**9, "float32", 8) == 6e9 and total(10**9, "bfloat16", 8) == 4e9
    free, installed = memory._device_memory(CPU)
    assert 0 < free <= installed


@pytest.mark.parametrize(
    "field, ranks, gib, sharded",
    [
        ("auto", 8, 80, True), ("auto", 8, 160, False), ("auto", 1, 80, False), ("replicate", 8, 80, False),
        ("shard", 8, 160, True), ("shard", 1, 80, False),
    ],
)  # fmt: skip
def test_auto_shards_what_would_fill_a_quarter(field, ranks, gib, sharded, monkeypatch):
    monkeypatch.setattr(parallel.distributed, "world", lambda: ranks)
    monkeypatch.setattr(memory, "_device_memory", lambda device: (0, gib * GIB))
    assert parallel.choose(toy_config(parallel=field, dtype="bfloat16"), 2_000_000_000, CPU) == sharded


def test_an_unsupported_or_damaged_model_is_one_line(tmp_path):
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 40)
    toy_model().config.save_pretrained(tmp_path)
    toy_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UserError, match="cannot be loaded"):
        parallel.load(str(tmp_path), toy_config(), CPU)
    part = {"model.embed_tokens.weight": torch.zeros(13, 32)}
    save_file(part, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="weights are missing, such as"):
        parallel.load(str(tmp_path), toy_config(), CPU)


def test_one_line_says_which_implementations_are_used(monkeypatch):
    hybrid = toy_model()
    assert paths(hybrid, CPU) == (
        "attention sdpa (flash-attn is not installed), delta rule torch (flash-linear-attention is not installed), "
        "convolution torch (causal-conv1d is not installed), log-probs torch"
    )
    assert paths(toy_model("qwen3"), CPU) == "attention sdpa (flash-attn is not installed), log-probs torch"
    monkeypatch.setattr(model, "installed", lambda package: True)
    assert "delta rule flash-linear-attention, convolution causal-conv1d" in paths(hybrid, CPU)


def test_flash_attention_is_taken_where_it_can_be(monkeypatch):
    """On a GPU, in bfloat16, when it is installed; the package itself cannot be had without a GPU."""
    asked = []
    policy = toy_model("qwen3")
    policy.set_attn_implementation = asked.append
    monkeypatch.setattr("transformers.utils.is_flash_attn_2_available", lambda: True)
    for dtype, device in ((torch.float32, "cuda"), (torch.bfloat16, "cpu")):
        use_flash_attention(policy.to(dtype), torch.device(device))
    assert not asked
    use_flash_attention(policy.bfloat16(), torch.device("cuda"))
    assert asked == ["flash_attention_2"]


@pytest.mark.parametrize("checkpointed", [False, True])
def test_activation_checkpointing_computes_layers_again_in_the_backward_pass(checkpointed):
    weights, _ = parallel.load(str(model.ASSETS / "searchqa"), toy_config(activation_checkpointing=checkpointed), CPU)
    calls = []
    for layer in weights.model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda *_: calls.append(1))
    weights.model.train()
    ids = torch.arange(12).view(2, 6)
    weights.logprobs(ids, torch.arange(11), torch.arange(11), 1.0).logprob_N.sum().backward()
    assert len(calls) == len(weights.model.model.layers) * (2 if checkpointed else 1)
