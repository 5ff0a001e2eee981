"""Every error Outrider raises on purpose.

    OutriderError
    ├── InvalidRequest          the caller's request cannot be served as it is (HTTP 400)
    │   └── ContextTooLong      prompt and reply do not fit the context
    ├── UnknownModel            no such model here (404)
    ├── QueueFull               try again later (429)
    ├── Unavailable             a part of the graph is not there now (503)
    │   └── DeadlinePassed      the request waited longer than it wanted to
    ├── ConfigError             a setting is wrong; nothing starts
    ├── CheckpointError         a model file is missing, broken or of an unknown kind; nothing starts
    │   ├── UnknownTokenizer    a vocabulary or pre-tokenizer this version does not know
    │   └── UnknownTemplate     a chat template this version cannot render
    ├── GateStoreError          gates cannot be written now (serve_app.gating.store)
    └── ProtocolError           a peer broke the drafting protocol; its connection is closed

Each message is one sentence that says what to do. The classes keep their arguments in `args`, so that they
survive pickling from one process to another.
"""


class OutriderError(Exception):
    """The base of all of them. `str(error)` is one sentence for a person."""


class InvalidRequest(OutriderError):
    """A request that cannot be served as it is.

    Args:
        message: one sentence that names the field and what it may be.
        param: the JSON path of the field, as OpenAI's error objects carry it; `None` for the body as a whole.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message, param)
        self.message = message
        self.param = param

    def __str__(self) -> str:
        return self.message


class ContextTooLong(InvalidRequest):
    """The prompt, or the prompt and the reply asked for, exceed the model's context."""


class UnknownModel(OutriderError):
    """The model named in a request is not served here."""


class QueueFull(OutriderError):
    """No room to wait for a slot.

    Args:
        message: one sentence.
        retry_after_s: whole seconds after which trying again makes sense.
    """

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message, retry_after_s)
        self.message = message
        self.retry_after_s = retry_after_s

    def __str__(self) -> str:
        return self.message


class Unavailable(OutriderError):
    """A part of the graph is away; the request was not started and can be sent again."""


class DeadlinePassed(Unavailable):
    """The request's own deadline passed while it waited for a slot; it was not started."""


class ConfigError(OutriderError):
    """A setting that cannot work, found before anything starts."""


class CheckpointError(OutriderError):
    """A model file that is missing, broken, or of a kind this version does not know."""


class UnknownTokenizer(CheckpointError):
    """A vocabulary or pre-tokenizer this version does not know; it is refused by name, never guessed."""


class UnknownTemplate(CheckpointError):
    """A chat template this version cannot render."""


class ProtocolError(OutriderError):
    """A frame that breaks the drafting protocol. Costs its connection, nothing else."""
