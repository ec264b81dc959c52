"""A model ready to chat: its weights, its tokenizer and its chat template, loaded from one GGUF file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from engine.errors import DormouseError
from engine.formats.gguf import open_gguf
from engine.kernels import Kernels
from engine.kernels.kv_types import KV_TYPES
from engine.models import LoadProgress, Model, check_architecture, load_model
from engine.slot import records
from engine.tokenizer.chat_template import ChatTemplate, load_chat_template
from engine.tokenizer.prompt import PromptBuilder
from engine.tokenizer.template_process import Check, no_check
from engine.tokenizer.tokenizer import Tokenizer, load_tokenizer

DEFAULT_N_CTX = 8192
DEFAULT_CHECKPOINT_INTERVAL = 512
DEFAULT_BUDGET = 2 << 30


@dataclass(frozen=True)
class EngineSettings:
    """How a model runs; None for what the model or the machine suggests."""

    n_ctx: int | None = None  # tokens; by default the model's own, at most 8192
    n_ubatch: int = 512  # tokens evaluated at once in prefill
    kv_type: str = "f16"
    checkpoint_interval: int = DEFAULT_CHECKPOINT_INTERVAL  # tokens between checkpoints in long messages, at least
    memory_budget: int = DEFAULT_BUDGET  # bytes of live conversations beside the one in use
    disk_budget: int = DEFAULT_BUDGET  # bytes of a model's state in one slot file

    def __post_init__(self) -> None:
        if self.n_ctx is not None and self.n_ctx < 1:
            raise DormouseError(f"The context must hold at least one token, not {self.n_ctx}.")
        if self.n_ubatch < 1:
            raise DormouseError(f"A ubatch must have at least one token, not {self.n_ubatch}.")
        if self.checkpoint_interval < 1:
            raise DormouseError(f"Checkpoints must be at least one token apart, not {self.checkpoint_interval}.")
        if self.memory_budget < 0 or self.disk_budget < 0:
            raise DormouseError("A budget can't be less than nothing.")
        if self.kv_type not in KV_TYPES:
            raise DormouseError(f"There is no K/V type “{self.kv_type}”; there are: {', '.join(KV_TYPES)}.")


@dataclass(frozen=True)
class Runtime:
    """Everything that turns a conversation into a reply. Immutable; shared by all slots."""

    path: Path
    file_changed: float  # when the file was changed last, in seconds since 1970; infinite where systems don't say
    fingerprint: str  # see LoadedModel
    tensor_fingerprint: str
    model: Model
    tokenizer: Tokenizer
    template: ChatTemplate
    settings: EngineSettings

    @classmethod
    def load(
        cls,
        path: Path,
        kernels: Kernels,
        settings: EngineSettings,
        *,
        progress: LoadProgress | None = None,
        check: Check = no_check,
    ) -> Runtime:
        """Load a GGUF file; `check` is called while its chat template is waited for, and may raise.

        Raises DormouseError (FormatError, UnsupportedError) with the reason why it can't be used.
        """
        try:
            return cls._load(path, kernels, settings, progress, check)
        except MemoryError as error:
            raise DormouseError(f"There is not enough memory for the model {path}.") from error

    @classmethod
    def _load(
        cls, path: Path, kernels: Kernels, settings: EngineSettings, progress: LoadProgress | None, check: Check
    ) -> Runtime:
        with open_gguf(path) as gguf:
            check_architecture(gguf)  # first: of what stops a model here, it says most
            tokenizer = load_tokenizer(gguf)
            template = load_chat_template(gguf, tokenizer.vocabulary)
            template.start()
            loaded = load_model(gguf, kernels, progress=progress)
            file_changed = gguf.changed
        kv_type = KV_TYPES[settings.kv_type]
        loaded.model.new_memory(kv_type)  # a type that does not fit is refused here, not in a turn
        kernels.prepare_attention(kv_type)
        template.compile(check=check)
        return cls(
            path=path,
            file_changed=file_changed,
            fingerprint=loaded.fingerprint,
            tensor_fingerprint=loaded.tensor_fingerprint,
            model=loaded.model,
            tokenizer=tokenizer,
            template=template,
            settings=settings,
        )

    @property
    def n_ctx(self) -> int:
        """Tokens that a conversation may hold."""
        return self.settings.n_ctx or min(self.model.config.n_ctx_train, DEFAULT_N_CTX)

    def prompt_builder(self, *, now: datetime, check: Check = no_check) -> PromptBuilder:
        """Return what renders a conversation into token ids; see `PromptBuilder`."""
        return PromptBuilder(self.tokenizer, self.template, now=now, check=check)

    def identity(self) -> records.ModelIdentity:
        """Return the identity under which this model's state is stored; its id is not decided yet."""
        config = self.model.config
        return records.ModelIdentity(
            id=0,
            fingerprint=self.fingerprint,
            architecture=config.architecture,
            name=config.name,
            path=str(self.path),
            tokenizer=self.tokenizer.digest,
            template=self.template.digest,
            kv_type=self.settings.kv_type,
            kernels=self.model.kernels.identity,
            config={
                "n_embd": config.n_embd,
                "layers": [[asdict(need) for need in needs] for needs in self.model.layer_memories],
            },
        )
