"""Language and speech: encoders, decoders, and the steps of decoders that keep their state in inputs and outputs."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from .sample import Subject, bias, mask, segments, sound, spectrum, state, tokens

WORDS, LENGTH = 160, 16
SMALL = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ENCODER = {**SMALL, "intermediate_size": 64, "max_position_embeddings": 40, "attention_probs_dropout_prob": 0.0}
DECODER = {**SMALL, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}


class Take(nn.Module):
    """A model of ``transformers`` whose inputs have names, and of whose results some are wanted."""

    def __init__(self, model: nn.Module, inputs: tuple[str, ...], outputs: tuple[str, ...], **fixed: Any) -> None:
        super().__init__()
        self.model, self.inputs, self.outputs, self.fixed = model, inputs, outputs, fixed

    def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
        result = self.model(**dict(zip(self.inputs, values, strict=True)), **self.fixed)
        return tuple(getattr(result, name) for name in self.outputs)


def _masked(model: nn.Module, **fixed: Any) -> Subject:
    inputs = {"input_ids": tokens(WORDS, LENGTH), "attention_mask": mask(LENGTH, 6)}
    return Subject(module=Take(model, tuple(inputs), ("logits",), **fixed), inputs=inputs, outputs=("logits",))


def _biased(model: nn.Module) -> Subject:
    """A causal model that is given its mask as what is added to the scores, as tool chains for devices want it."""
    inputs = {"input_ids": tokens(WORDS, LENGTH), "attention_mask": bias(LENGTH, LENGTH)}
    module = Take(model, tuple(inputs), ("logits",), use_cache=False)
    return Subject(module=module, inputs=inputs, outputs=("logits",))


def distilbert() -> Subject:
    config = hf.DistilBertConfig(vocab_size=WORDS, dim=32, hidden_dim=64, n_layers=2, n_heads=4, num_labels=5)
    return _masked(hf.DistilBertForSequenceClassification(config))


def roberta() -> Subject:
    config = hf.RobertaConfig(**ENCODER, num_labels=7, pad_token_id=1)
    return _masked(hf.RobertaForTokenClassification(config))


def deberta() -> Subject:
    config = hf.DebertaV2Config(
        **ENCODER, num_labels=5, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8
    )
    return _masked(hf.DebertaV2ForSequenceClassification(config))


def bert_cross_encoder() -> Subject:
    model = hf.BertForSequenceClassification(hf.BertConfig(**ENCODER, num_labels=1))
    names = {"input_ids": tokens(WORDS, LENGTH), "attention_mask": mask(LENGTH, 10), "token_type_ids": segments(LENGTH)}
    return Subject(module=Take(model, tuple(names), ("logits",)), inputs=names, outputs=("logits",))


def gpt2() -> Subject:
    config = hf.GPT2Config(vocab_size=WORDS, n_positions=40, n_embd=32, n_layer=2, n_head=4)
    return _masked(hf.GPT2LMHeadModel(config), use_cache=False)


def qwen2() -> Subject:
    return _biased(hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER)))


def gemma() -> Subject:
    return _masked(hf.GemmaForCausalLM(hf.GemmaConfig(**DECODER, head_dim=8)), use_cache=False)


def t5_encoder() -> Subject:
    config = hf.T5Config(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    inputs = {"input_ids": tokens(WORDS, LENGTH), "attention_mask": mask(LENGTH, 6)}
    outputs = ("last_hidden_state",)
    return Subject(module=Take(hf.T5EncoderModel(config), tuple(inputs), outputs), inputs=inputs, outputs=outputs)


WHISPER = {
    "vocab_size": WORDS,
    "d_model": 32,
    "num_mel_bins": 20,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_source_positions": 24,
    "max_target_positions": 32,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def whisper_encoder() -> Subject:
    model = hf.WhisperModel(hf.WhisperConfig(**WHISPER)).encoder
    inputs, outputs = {"input_features": spectrum(20, 48)}, ("last_hidden_state",)
    return Subject(module=Take(model, tuple(inputs), outputs), inputs=inputs, outputs=outputs)


class WhisperStep(nn.Module):
    """One token of the decoder: keys and values of the tokens before and of the sound come and go."""

    def __init__(self, model: nn.Module, past: int) -> None:
        super().__init__()
        self.decoder, self.head, self.past = model.model.decoder, model.proj_out, past

    def forward(self, token: Tensor, *cached: Tensor) -> tuple[Tensor, ...]:
        own, cross = cached[:4], cached[4:]
        unused = torch.zeros(1, cross[0].shape[2], 32)
        cache = EncoderDecoderCache(
            DynamicCache([(own[0], own[1]), (own[2], own[3])]),
            DynamicCache([(cross[0], cross[1]), (cross[2], cross[3])]),
        )
        place = torch.full((1, 1), self.past, dtype=torch.long)
        result = self.decoder(
            input_ids=token, encoder_hidden_states=unused, past_key_values=cache, use_cache=True, position_ids=place
        )
        layers = cache.self_attention_cache.layers
        return (self.head(result.last_hidden_state), *(t for layer in layers for t in (layer.keys, layer.values)))


def whisper_step() -> Subject:
    past, heard = 7, 12
    own = {f"past.{i}.{what}": state(1, 4, past, 8) for i in (0, 1) for what in ("key", "value")}
    cross = {f"cross.{i}.{what}": state(1, 4, heard, 8) for i in (0, 1) for what in ("key", "value")}
    return Subject(
        module=WhisperStep(hf.WhisperForConditionalGeneration(hf.WhisperConfig(**WHISPER)), past),
        inputs={"token": tokens(WORDS, 1), **own, **cross},
        outputs=("logits", *(name.replace("past", "present") for name in own)),
    )


def wav2vec2() -> Subject:
    config = hf.Wav2Vec2Config(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        conv_dim=[16] * 4,
        conv_kernel=[10, 3, 3, 2],
        conv_stride=[5, 2, 2, 2],
        num_feat_extract_layers=4,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
    )
    inputs = {"input_values": sound(1600)}
    return Subject(
        module=Take(hf.Wav2Vec2ForCTC(config), tuple(inputs), ("logits",)), inputs=inputs, outputs=("logits",)
    )


class Step(nn.Module):
    """One token of a causal model: keys and values of the tokens before as inputs, with the new one as outputs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, place: Tensor, seen: Tensor, *past: Tensor) -> tuple[Tensor, ...]:
        cache = DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
        result = self.model(
            input_ids=token, position_ids=place, attention_mask=seen, past_key_values=cache, use_cache=True
        )
        return (result.logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values)))


def _step(model: nn.Module, heads: int, width: int) -> Subject:
    past = 15
    cached = {f"past.{i}.{what}": state(1, heads, past, width) for i in (0, 1) for what in ("key", "value")}

    def place(rng: Any) -> Any:
        return mask(past, 8)(rng).sum(keepdims=True).reshape(1, 1)

    return Subject(
        module=Step(model),
        inputs={"token": tokens(WORDS, 1), "position": place, "attention_mask": bias(1, past + 1), **cached},
        outputs=("logits", *(name.replace("past", "present") for name in cached)),
    )


def qwen2_step() -> Subject:
    return _step(hf.Qwen2ForCausalLM(hf.Qwen2Config(**DECODER)), heads=2, width=8)


def gpt2_step() -> Subject:
    config = hf.GPT2Config(vocab_size=WORDS, n_positions=40, n_embd=32, n_layer=2, n_head=4)
    return _step(hf.GPT2LMHeadModel(config), heads=4, width=8)


class RwkvStep(nn.Module):
    """One token of RWKV, whose whole memory is five tensors."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, token: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        result = self.model(input_ids=token, state=[tensor.clone() for tensor in state], use_cache=True)
        return (result.logits, *result.state)


def rwkv_step() -> Subject:
    config = hf.RwkvConfig(vocab_size=WORDS, context_length=32, hidden_size=32, num_hidden_layers=2)
    names = ("shift", "mixed", "numerator", "denominator", "highest")
    memory = {f"state.{name}": state(1, 32, 2, size=0.5) for name in names}
    memory["state.denominator"] = lambda rng: abs(state(1, 32, 2)(rng)) + 1
    return Subject(
        module=RwkvStep(hf.RwkvForCausalLM(config)),
        inputs={"token": tokens(WORDS, 1), **memory},
        outputs=("logits", *(f"next.{name}" for name in names)),
    )
