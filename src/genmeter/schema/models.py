"""The Sample standard as pydantic models.

Every top-level field is there, typed where the standard types it. Fields that the standard does not name pass
through as they came, at every level. Validation is strict (nothing is converted), so a sample that is read and
dumped again is unchanged. Where records in use are wider than the standard, the models say so: an id or a label may
be a number, an optional field may be null, content may be a plain string.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Discriminator, GetJsonSchemaHandler, Tag, ValidationError, WithJsonSchema
from pydantic.json_schema import GenerateJsonSchema

from genmeter.schema.issues import describe
from genmeter.schema.media import is_media_object

# In Python a url may also be an in-memory object (image, array, encoded bytes). What is neither is an error of that one
# asset, found by whoever reads it, so that the others of the sample are scored.
Url: TypeAlias = Annotated[Any, WithJsonSchema({"description": "A string: a path or URI."})]
Number: TypeAlias = int | float


class _SchemaWriter(GenerateJsonSchema):
    """Unions are told apart by a function that JSON Schema cannot express, so ``anyOf`` says what is accepted."""

    def tagged_union_schema(self, schema: Any) -> dict[str, Any]:
        written = super().tagged_union_schema(schema)
        if "oneOf" in written:
            written["anyOf"] = written.pop("oneOf")
        return written


class Model(BaseModel):
    """Base of all models: strict, keeps unknown fields, and dumps only what was there."""

    model_config = ConfigDict(extra="allow", strict=True, arbitrary_types_allowed=True, protected_namespaces=())

    def to_record(self) -> dict[str, Any]:
        """The JSON object this was read from: nothing added, nothing converted."""
        return self.model_dump(exclude_unset=True, by_alias=True)

    @classmethod
    def model_json_schema(cls, *args: Any, **options: Any) -> dict[str, Any]:
        """The model's JSON Schema (draft 2020-12). Takes pydantic's arguments."""
        if len(args) < 3:
            options.setdefault("schema_generator", _SchemaWriter)
        return super().model_json_schema(*args, **options)


class TextFragment(Model):
    """A piece of text."""

    type: Literal["text"]
    text: str | None


class MediaUrl(Model):
    """Where an asset is: a path relative to a media root, or a URI."""

    url: Url = None


class ImageFragment(Model):
    """An image by path or URL."""

    type: Literal["image_url"]
    image_url: MediaUrl | str | None = None


class AudioFragment(Model):
    """An audio file by path or URL."""

    type: Literal["audio_url"]
    audio_url: MediaUrl | str | None = None


class VideoFragment(Model):
    """A video by path or URL."""

    type: Literal["video_url"]
    video_url: MediaUrl | str | None = None


class FileFragment(Model):
    """A document by path or URL."""

    type: Literal["file_url"]
    file_url: MediaUrl | str | None = None


class OtherFragment(Model):
    """A fragment in another API's shape (``image``, ``input_audio`` ...) or of a type that is not known here."""

    model_config = ConfigDict(
        json_schema_extra={
            "not": {
                "properties": {"type": {"enum": ["text", "image_url", "audio_url", "video_url", "file_url"]}},
                "required": ["type"],
            }
        }
    )


def _fragment_tag(value: Any) -> str | None:
    if isinstance(value, str):
        return "plain"
    if isinstance(value, dict):
        name = value.get("type")
        return name if isinstance(name, str) and name in _FRAGMENT_TAGS else "other"
    if isinstance(value, Model):
        return next((tag for tag, model in _FRAGMENT_TAGS.items() if type(value) is model), "other")
    return "object" if value is None or is_media_object(value) else None


_FRAGMENT_TAGS: dict[str, type[Model]] = {
    "text": TextFragment,
    "image_url": ImageFragment,
    "audio_url": AudioFragment,
    "video_url": VideoFragment,
    "file_url": FileFragment,
}

Fragment: TypeAlias = Annotated[
    Annotated[TextFragment, Tag("text")]
    | Annotated[ImageFragment, Tag("image_url")]
    | Annotated[AudioFragment, Tag("audio_url")]
    | Annotated[VideoFragment, Tag("video_url")]
    | Annotated[FileFragment, Tag("file_url")]
    | Annotated[OtherFragment, Tag("other")]
    | Annotated[str, Tag("plain")]
    | Annotated[Any, Tag("object"), WithJsonSchema({"type": "null"})],
    Discriminator(
        _fragment_tag,
        custom_error_type="fragment",
        custom_error_message="expected a fragment",
    ),
]


def _content_tag(value: Any) -> str | None:
    if isinstance(value, list):
        return "list"
    if value is None or isinstance(value, str):
        return "plain"
    return "fragment" if isinstance(value, (dict, Model)) else None


Content: TypeAlias = Annotated[
    Annotated[list[Fragment], Tag("list")] | Annotated[str | None, Tag("plain")] | Annotated[Fragment, Tag("fragment")],
    Discriminator(
        _content_tag,
        custom_error_type="content",
        custom_error_message="expected a list of fragments or a string",
    ),
]


class CalledFunction(Model):
    """Which function a tool call names, and with what: JSON in a string as OpenAI has it, or an object."""

    name: str
    arguments: str | dict[str, Any] | None = None


class ToolCall(Model):
    """One call in ``tool_calls``."""

    id: str | None = None
    type: str | None = None
    function: CalledFunction | None = None


class Message(Model):
    """One turn in the style of OpenAI: a role and a list of content fragments.

    An assistant's turn may hold ``tool_calls``; a turn with the role ``tool`` answers one, named by ``tool_call_id``.
    """

    role: str = "user"
    content: Content = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None


class FunctionSchema(Model):
    """A function that a model may call; ``parameters`` is a JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Model):
    """One of ``tools``, as OpenAI has them; of a type other than ``function`` nothing more is asked."""

    type: str
    function: FunctionSchema | None = None


class OptionItem(Model):
    """One option of a multiple-choice question."""

    id: str | int
    content: str | None = None


class ReferenceItem(Model):
    """One final answer."""

    answer: Any
    meta: dict[str, Any] | None = None


class _WithoutAnswer:
    """An object with an answer is an item and nothing else, so the schema of a bare fragment must not take it."""

    def __get_pydantic_json_schema__(self, core: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {"allOf": [handler(core), {"not": {"type": "object", "required": ["answer"]}}]}


def _reference_tag(value: Any) -> str | None:
    if isinstance(value, dict):
        return "item" if "answer" in value else "fragment"
    if isinstance(value, Model):
        return "item" if isinstance(value, ReferenceItem) else "fragment"
    if isinstance(value, list):
        return "list"
    if value is None or isinstance(value, (str, int, float)):
        return "plain"
    return "object" if is_media_object(value) else None


Reference: TypeAlias = Annotated[
    Annotated[ReferenceItem, Tag("item")]
    | Annotated[Fragment, Tag("fragment"), _WithoutAnswer()]
    | Annotated[list[Fragment], Tag("list")]
    | Annotated[str | Number | None, Tag("plain")]
    | Annotated[Any, Tag("object"), WithJsonSchema({"type": "null"})],
    Discriminator(
        _reference_tag,
        custom_error_type="reference",
        custom_error_message="expected a string or an object with an answer",
    ),
]


def _option_tag(value: Any) -> str | None:
    return "item" if isinstance(value, (dict, OptionItem)) else "plain" if isinstance(value, str) else None


Option: TypeAlias = Annotated[
    Annotated[OptionItem, Tag("item")] | Annotated[str, Tag("plain")],
    Discriminator(
        _option_tag,
        custom_error_type="option",
        custom_error_message="expected an object with id and content, or a string",
    ),
]


class FewShotItem(Model):
    """A worked example that comes with the sample.

    It may not hold examples of its own, nor what a run writes, nor large objects: these fields are refused by name
    unless they are null. Other unknown fields pass.
    """

    messages: list[Message]
    references: list[Reference]
    options: list[Option] | None = None
    label: str | Number | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    few_shot_examples: None = None
    predict_result: None = None
    eval_result: None = None
    raw_assets: None = None
    sandbox: None = None


class Sandbox(Model):
    """The environment that code or an agent runs in."""

    image: str | None = None
    files: dict[str, Any] | None = None
    setup: str | None = None
    env: dict[str, Any] | None = None


class EvalConfig(Model):
    """How this sample wants to be judged."""

    metrics: list[Any] | None = None
    judge_prompt: str | None = None


class PredictResult(Model):
    """One candidate: what a model returned."""

    index: int | None = None
    message: Message | None = None
    raw_response: Any = None
    usage: dict[str, Any] | None = None
    latency_ms: Number | None = None


class EvalResult(Model):
    """What judges and metrics said."""

    overall: Any = None
    metrics: Any = None
    judge: Any = None


class Sample(Model):
    """One record of the Sample standard."""

    schema_version: str
    id: str | int
    messages: list[Message]
    task_type: str | None = None
    options: list[Option] | None = None
    references: list[Reference] | str | dict[str, Any] | None = None
    label: str | Number | None = None
    few_shot_examples: list[FewShotItem] | None = None
    golden_trajectories: list[list[Message]] | None = None
    sandbox: Sandbox | None = None
    metadata: dict[str, Any] | None = None
    data_tag: dict[str, Any] | None = None
    raw_assets: dict[str, Any] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    sampling_params: dict[str, Any] | None = None
    generation_params: dict[str, Any] | None = None
    eval_config: EvalConfig | None = None
    unconditioned_input: list[Message | str] | str | None = None
    predict_result: list[PredictResult] | None = None
    eval_result: EvalResult | None = None


_validate = Sample.__pydantic_validator__.validate_python


def validate_sample(data: dict[str, Any]) -> list[str]:
    """Check a sample against the standard; an empty list means that it follows it.

    Each issue names its field and says what was expected and what kind of value was found, never the value
    (``messages[0].content: expected a list of fragments or a string, found a number``).
    """
    try:
        _validate(data)
    except ValidationError as error:
        return describe(data, error)
    return []
