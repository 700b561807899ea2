"""Text generation as a workload: ``hf:NAME -- generate=64`` measures ``model.generate``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from advisor.errors import TargetError
from advisor.records import Mode, TargetSpec
from advisor.target.hubs.contract import Adapted
from advisor.target.hubs.hf_batches import longest_text, prompts

OPTION = "generate"
# Tokens of a prompt, unless --input says otherwise.
_USUAL_PROMPT = 32


@dataclass(frozen=True)
class Generate:
    """A step that continues each prompt greedily by ``new_tokens`` tokens."""

    model: Any
    new_tokens: int

    def __call__(self, batch: dict[str, Any]) -> Any:
        """The tokens: of a decoder with those of the prompt before them."""
        return self.model.generate(**batch, do_sample=False, max_new_tokens=self.new_tokens)


def tokens_of(options: dict[str, Any]) -> int:
    """Take the number of new tokens out of a named model's options; 0 without one. Raises TargetError."""
    wanted = options.pop(OPTION, 0)
    if type(wanted) is not int or wanted < 0:
        raise TargetError(f"{OPTION}={wanted} is no number of tokens.", f"Write {OPTION}=64, for example.")
    return wanted


def generating(model: Any, new_tokens: int, spec: TargetSpec, notes: list[str]) -> Adapted:
    """Generation by a model as a workload for inference. Raises TargetError for a model that does not generate."""
    name = type(model).__name__
    if not model.can_generate():
        raise TargetError(
            f"{name} does not generate text.",
            f"Leave {OPTION} out, or name a model that does, such as `hf:gpt2 -- {OPTION}={new_tokens}`.",
        )
    if spec.mode is Mode.TRAIN:
        raise TargetError(f"{OPTION} is for inference, and --mode train asks for training.", "Leave one of them out.")
    length = spec.input_shape[-1] if spec.input_shape else _USUAL_PROMPT
    room = longest_text(model) if not model.config.is_encoder_decoder else length + new_tokens
    if length + new_tokens > room:
        raise TargetError(
            f"a prompt of {length} tokens and {new_tokens} new ones do not fit into the {room} positions of {name}.",
            f"Generate fewer, as in `-- {OPTION}={max(1, room - length)}`, or give shorter prompts with --input 1x8.",
        )
    made = prompts(model, replace(spec, input_shape=None), length)
    settings = model.generation_config
    settings.eos_token_id = None  # every prompt is continued to the same length
    settings.pad_token_id = settings.pad_token_id or 0
    if settings.decoder_start_token_id is None:
        settings.decoder_start_token_id = getattr(model.config, "decoder_start_token_id", None)
    told = f"a step continues each prompt of {length} random tokens by {new_tokens}, greedily"
    return Adapted(
        model=model.eval(),
        data=made,
        mode=Mode.INFER.value,
        step=Generate(model, new_tokens),
        notes=[*notes, told],
        usual_size=1,
    )
