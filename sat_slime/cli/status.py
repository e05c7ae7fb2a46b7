"""What is known of a run, whatever became of it, by its folder alone or by its cluster too."""

from __future__ import annotations

from pathlib import Path

from sat_slime.cli.jobs import short
from sat_slime.cli.sent import progress, status_lines
from sat_slime.config import EmbeddedConfig, load_config, method_label
from sat_slime.runs.folder import RunFolder
from sat_slime.runs.rows import read_rows


def lines(path: Path) -> list[str]:
    """A line each. Raises RunFolderError, ConfigError or JobError."""
    folder = RunFolder.open(path)
    config = load_config(folder.config)
    return _embedded(folder, config) if isinstance(config, EmbeddedConfig) else status_lines(path)


def _embedded(folder: RunFolder, config: EmbeddedConfig) -> list[str]:
    from sat_slime.embedded.checkpoint import newest

    noted, saved = folder.state(), newest(folder.checkpoints)
    status = noted.get("status")
    pipeline = config.pipeline
    rows = read_rows(folder.metrics)
    steps = pipeline.iterations * pipeline.optimizer_steps_per_rollout
    ended = noted.get("ended") if status not in ("running", "killed") else None
    lines = [
        f"run         {config.name}: {method_label(config.method.model_dump())}, lag {pipeline.lag}",
        f"state       {status or 'not started'}" + (f" (process {noted.get('pid')})" if status == "running" else ""),
        f"started     {noted.get('last_started', 'never')}" + (f", ended {ended}" if ended else ""),
        f"progress    {progress(rows[-1] if rows else {}, steps)}",
        f"checkpoint  {saved.name if saved else 'none yet'}",
    ]
    if noted.get("error"):
        lines.append(f"error       {noted['error']}")
    if status not in ("running", "finished"):
        lines.append(f"go on with  sat-slime launch {short(folder.path)} --resume")
    return lines
