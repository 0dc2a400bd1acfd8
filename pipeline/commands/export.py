"""``penstock export``: a trained model as ONNX, safetensors or a plain state dict, compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from penstock.core.files import whole_file
from penstock.core.registry import register
from penstock.pipeline.config.errors import listing
from penstock.pipeline.training.output import print_line

if TYPE_CHECKING:
    import torch
    from torch import nn

    from penstock.pipeline.training.trained import Trained

_FORMATS = {
    ".onnx": "onnx",
    ".safetensors": "safetensors",
    ".pt": "state_dict",
    ".pth": "state_dict",
}
_TOLERANCE = 1e-3
_MOST_BYTES = 2 << 30  # of a file of ONNX


@register("settings", "export")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExportSettings:
    """Which model, and where to write it.

    What is written is compared with the model on a batch of the run's data before it gets its
    name. ONNX takes what the model reads of a batch, as it comes from ``augment.device``, in
    batches of any size; the others are the weights by name, which ``trainer.init_from`` reads.

    Args:
        checkpoint: A run's folder or ``run.name`` (its best checkpoint, or the last), or a
            checkpoint; or its URL.
        split: The split that the batch is of; null: as for ``predict``.
        output: The file to write.
        format: Its form; null: by the file's ending, ``.onnx``, ``.safetensors``, ``.pt``.
        overwrite: Write over a file that is there.
    """

    checkpoint: str
    split: Literal["train", "val", "test"] | None = None
    output: str = "model.onnx"
    format: Literal["onnx", "safetensors", "state_dict"] | None = None
    overwrite: bool = False


def run(config: dict[str, Any]) -> int:
    """Write a trained model, and compare what was written with it.

    Raises:
        ValueError: Checkpoint, data or output cannot be used, the model cannot be written so, or
            what was written computes something else.
    """
    import torch

    from penstock.pipeline.training.trained import opened_trained

    asked = config["export"]
    path = Path(asked["output"])
    form = asked["format"] or _FORMATS.get(path.suffix.lower())
    endings = [path.suffix.lower()] if asked["format"] else list(_FORMATS)
    with opened_trained(config, command="export", endings=endings) as (world, trained, output):

        def write() -> str:
            inputs, outputs = _tried(trained)
            output.parent.mkdir(parents=True, exist_ok=True)
            with whole_file(output) as file, torch.no_grad():
                if form == "onnx":
                    said = _write_onnx(trained.model, inputs, outputs, file)
                else:
                    said = _write_weights(trained.model, inputs, outputs, file, str(form))
            return said

        said = world.on_main(write)
        if world.is_main:
            print_line(f"written: {output}, {output.stat().st_size:,} bytes; {said}")
    return 0


class _Read(dict[str, Any]):
    """A batch that notes what is read of it."""

    def __init__(self, batch: Mapping[str, Any]) -> None:
        super().__init__(batch)
        self.read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        self.read[name] = value
        return value


def _tried(trained: Trained) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What the model reads of the first batch, at least two rows of it, and what it gives."""
    import torch

    batch = next(iter(trained.batches), None)
    if batch is None:
        raise ValueError("export: there are no samples to compare with; set export.split")
    trained.model.cpu()
    read = _Read(_to_cpu(batch))
    with torch.no_grad():
        trained.model(read)
    others = [name for name, value in read.read.items() if not isinstance(value, torch.Tensor)]
    if others:
        raise ValueError(
            f"export: the model reads {listing(others)} of a batch, which is no tensor; give it a "
            f"forward that takes tensors alone"
        )
    inputs = {name: torch.cat([value, value])[: max(2, len(value))]
              for name, value in read.read.items()}  # fmt: skip
    with torch.no_grad():
        return inputs, dict(_flat(trained.model(dict(inputs))))


def _to_cpu(batch: Mapping[str, Any]) -> dict[str, Any]:
    import torch

    return {n: v.cpu() if isinstance(v, torch.Tensor) else v for n, v in batch.items()}


def _flat(outputs: Any, name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a model's outputs with their names."""
    import torch

    if isinstance(outputs, torch.Tensor):
        yield name or "output", outputs
    elif isinstance(outputs, Mapping):
        for key, each in outputs.items():
            yield from _flat(each, f"{name}_{key}".lstrip("_"))
    elif isinstance(outputs, (list, tuple)):
        for number, each in enumerate(outputs):
            yield from _flat(each, f"{name}_{number}".lstrip("_"))


def _compare(found: Mapping[str, Any], expected: Mapping[str, torch.Tensor]) -> str:
    """Say by how much outputs differ; ValueError where it is more than rounding."""
    import torch

    worst = 0.0
    for name, value in expected.items():
        other = torch.as_tensor(found[name])
        if other.shape != value.shape:
            raise ValueError(
                f"export: {name} would be {[*other.shape]} of what is written and "
                f"{[*value.shape]} of the model; nothing is written"
            )
        away = (other.double() - value.double()).abs() / value.double().abs().clamp(min=1)
        away = away.nan_to_num(nan=torch.inf)
        worst = max(worst, float(away.max()) if away.numel() else 0.0)
    if not worst <= _TOLERANCE:
        raise ValueError(
            f"export: what is written computes something else, by {worst:.2g}; nothing is written"
        )
    return f"its outputs are the model's{f' to {worst:.1g}' if worst else ', to the bit'}"


def _write_weights(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    file: Path,
    form: str,
) -> str:
    import torch

    weights = {
        name: each.detach().clone().contiguous() for name, each in model.state_dict().items()
    }
    if form == "safetensors":
        try:
            from safetensors.torch import load_file, save_file
        except ImportError as error:
            raise ValueError(
                "export: .safetensors needs the package safetensors; run: pip install "
                "'penstock[safetensors]'"
            ) from error
        save_file(weights, file)
        read = load_file(file)
    else:
        torch.save(weights, file)
        read = torch.load(file, weights_only=True)
    again = deepcopy(model)
    again.load_state_dict(read)
    return _compare(dict(_flat(again(dict(inputs)))), outputs)


def _write_onnx(
    model: nn.Module,
    inputs: Mapping[str, torch.Tensor],
    outputs: Mapping[str, torch.Tensor],
    file: Path,
) -> str:
    import torch

    size = sum(each.numel() * each.element_size() for each in model.state_dict().values())
    if size > _MOST_BYTES:
        raise ValueError(
            f"export: the weights have {size:,} bytes, and a file of ONNX holds 2 GB; type "
            f"output=model.safetensors"
        )
    try:
        import onnx  # noqa: F401 - what torch writes with
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"export: .onnx needs the package {error.name}; run: pip install 'penstock[onnx]'"
        ) from error

    class Taking(torch.nn.Module):
        """Gives the tensors of the model's outputs, in their order."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
            return tuple(value for _, value in _flat(self.model(batch)))

    dynamic = {name: {0: torch.export.Dim.DYNAMIC} for name in inputs}
    try:
        program = torch.onnx.export(
            Taking().eval(), (), kwargs={"batch": dict(inputs)}, dynamo=True, verbose=False,
            input_names=list(inputs), output_names=list(outputs), dynamic_shapes={"batch": dynamic},
        )  # fmt: skip
        assert program is not None
        program.save(str(file), external_data=False)
    except Exception as error:  # of torch, and of all that it exports with
        reason = str(error.__cause__ or error).strip().partition("\n")[0]
        raise ValueError(
            f"export: torch cannot write this model as ONNX: {reason}; type "
            f"output=model.safetensors for its weights"
        ) from error
    return _compared_by_runtime(model, inputs, file, list(outputs))


def _compared_by_runtime(
    model: nn.Module, inputs: Mapping[str, torch.Tensor], file: Path, names: list[str]
) -> str:
    """Run the file on one row less than it was made with, as batches may have any number."""
    try:
        from onnxruntime import InferenceSession
    except ImportError:
        return "not compared with the model, since there is no onnxruntime"
    fewer = {name: value[:-1] for name, value in inputs.items()}
    session = InferenceSession(file.read_bytes(), providers=["CPUExecutionProvider"])
    taken = {each.name for each in session.get_inputs()}
    found = session.run(names, {n: v.numpy() for n, v in fewer.items() if n in taken})
    return _compare(dict(zip(names, found, strict=True)), dict(_flat(model(fewer))))
