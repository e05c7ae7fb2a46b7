"""The run as typed data: YAML in, one resolved file out."""

from sat_slime.config.loader import dump_config, load_config, load_grid
from sat_slime.config.method_section import build_method, method_label
from sat_slime.config.rules import config_errors, config_warnings, slime_config_errors, slime_config_warnings
from sat_slime.config.schema import GridConfig, LabConfig
from sat_slime.config.slime_schema import SlimeConfig
from sat_slime.config.source import ConfigError

__all__ = [
    "ConfigError",
    "GridConfig",
    "LabConfig",
    "SlimeConfig",
    "build_method",
    "config_errors",
    "config_warnings",
    "dump_config",
    "load_config",
    "load_grid",
    "method_label",
    "slime_config_errors",
    "slime_config_warnings",
]
