"""Writes a run's YAML from a slime launch script, of which nothing is run: `sat-slime init from-script run.sh`.

The run trains by the script's own objective, so that another method is a change of `method` alone. A flag that a
setting of ours governs becomes that setting; any other stays slime's. What cannot be carried over is a line to write by
hand, at the head of the file and on the terminal.

Bash is read as far as launch scripts use it: arrays of flags, variables with defaults, `source`, whole-number
arithmetic, and the few commands whose output their words alone decide (`dirname`, `cd ... && pwd`, `seq`). What else a
value depends on leaves a mark in it, a character of Unicode's private area, and each mark has a reason.
"""

from __future__ import annotations

import ast
import io
import itertools
import json
import operator
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from sat_slime.config.slime_schema import DEFAULTS, SlimeConfig
from sat_slime.config.source import ConfigError, parse_value
from sat_slime.launch.command import GOVERNED, PLUGIN_FLAGS, REFUSED
from sat_slime.launch.flags import Flag, recorded_flags
from sat_slime.launch.secrets import is_secret, secret_names

TRAINERS = ("train.py", "train_async.py")
OPENING = ("if", "elif", "for", "while", "until", "case")
MARK = re.compile("[\ue000-\uf8ef]")
_DOLLAR = "\uf8f0"
"""Stands for a `$` that bash takes for itself."""
_QUOTED = r"""\\.|"(?:\\.|[^"\\])*"|'[^']*'"""
_COMMENT = re.compile(rf"({_QUOTED})|(?:(?<=[\s;])|^)#[^\n]*", re.DOTALL)
_CAT = re.compile(r"\$\(cat <<-?[ \t]*(\w+)(\n.*?\n)[ \t]*\1(\s*)\)", re.DOTALL)
_HEREDOC = re.compile(r"""<<-?[ \t]*(['"]?)(\w+)\1[^\n]*\n.*?\n[ \t]*\2(?=\s)""", re.DOTALL)
_LAYERS = re.compile(
    r"for \(\(i=0; *i<(?P<all>\w+); *i\+\+\)\); *do\s+if \(\( *i < (?P<dense>\w+) *\)\); *then\s+(?P<to>\w+)\+=\(0\)\s+"
    r"else\s+(?P=to)\+=\(1\)\s+fi\s+done(?P<more>\s+)printf -v (\w+) [^\n]*\{(?P=to)\[\*\]\}[^\n]*"
)
"""The loop of slime's models that says which layers have experts: 0 for the first ones, then 1."""
_STATEMENT = re.compile(rf"(?:{_QUOTED}|=\((?:{_QUOTED}|\$\([^)]*\)+|[^)\"'\\])*\)|[^\n;])+", re.DOTALL)
_ARRAY = re.compile(r"(?:(?:export|declare|local|readonly)\s+(?:-\w+\s+)*)?(\w+)(\+?)=\((.*)\)\s*", re.DOTALL)
_WHOLE_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_ARRAY_OR_NONE = re.compile(r"""\$\{(\w+)\[@\](?::?-|\+"?\$\{\1\[@\]\}"?)\}""")
"""`${NAME[@]:-}` and `${NAME[@]+"${NAME[@]}"}`, which are `${NAME[@]}` where it may be unset."""
_INNERMOST = re.compile(
    r"\$\(\((?P<number>[^$`]*?)\)\)(?!\))|\$\((?P<command>[^()$`]*)\)|`(?P<backquoted>[^`]*)`|"
    r"\$\{(?!\w+\[[@*]\]\})(?P<parameter>[^{}$`]*)\}|\$(?P<name>[A-Za-z_]\w*|[\d@*#?!$-])"
)
"""A substitution that has none inside."""
_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.floordiv}


STEPS = "pipeline.optimizer_steps_per_rollout"
OURS: Mapping[str, tuple[str, Any]] = {
    "num-gpus-per-node": ("cluster.gpus_per_node", None),
    "seed": ("seed", None),
    "num-rollout": ("pipeline.iterations", None),
    "update-weights-interval": ("pipeline.lag", None),
    "num-steps-per-rollout": (STEPS, None),
    "advantage-estimator": ("method.base", None),
    "use-rollout-logprobs": ("method.denominator", "rollout"),
    "eps-clip": ("method.clip.eps_low", None),
    "eps-clip-high": ("method.clip.eps_high", None),
    "eps-clip-c": ("method.clip.dual", None),
    "use-tis": ("method.tis", True),
    "tis-clip": ("method.tis.cap", None),
    "use-opsm": ("method.opsm", True),
    "opsm-delta": ("method.opsm.delta", None),
    "use-rollout-routing-replay": ("method.r3", True),
    "kl-loss-coef": ("loss.kl_coef", None),
    "entropy-coef": ("loss.entropy_coef", None),
    "calculate-per-token-loss": ("loss.reduction", "token_mean"),
}
"""The setting that each flag becomes, with its value where the flag has none."""
GOVERNS = {"global-batch-size": STEPS, "rollout-seed": "seed", "custom-config-path": "method"}
GOVERNS |= GOVERNED | dict.fromkeys(PLUGIN_FLAGS, "method")
"""Further flags that follow from a setting of ours."""
AS_SLIMES = frozenset(
    {
        *("actor-num-nodes", "rollout-num-gpus", "rollout-temperature", "rollout-top-p", "rollout-top-k"),
        *("sglang-server-concurrency", "tensor-model-parallel-size", "pipeline-model-parallel-size"),
        *("context-parallel-size", "expert-model-parallel-size", "optimizer", "lr", "adam-beta1", "adam-eps"),
        *("clip-grad", "n-samples-per-eval-prompt", "override-opt_param-scheduler", "use-tensorboard"),
    }
)
"""Flags that a run here has by default and that may stay where a script has not: slime's own default is the same, or
they change nothing of what is computed. Any other one is then left out."""


@dataclass(frozen=True)
class Word:
    """A word of the command, with the place where it stands, such as run.sh:12."""

    text: str
    place: str


@dataclass
class Given:
    """A flag of the script, with its words and place."""

    words: list[str]
    place: str


class Script:
    """What a launch script would start, read from top to bottom. Raises OSError or UnicodeDecodeError."""

    def __init__(self, path: Path):
        self.command: list[Word] = []
        """The words of `ray job submit`, or of what starts the trainer without Ray's jobs."""
        self.start: int | None = None
        """The number of the one among them that is slime's training file."""
        self.flags: dict[str, Given] = {}
        """Its flags, without dashes; those that become a setting go."""
        self.settings: dict[str, tuple[Any, str]] = {}
        """Dotted key to value, and the place in the script that it is from."""
        self.notes: list[str] = []
        """What is to be written by hand, each with its place."""
        self.reasons: list[str] = []
        """Why something cannot be read, by the number of its mark."""
        self.variables: dict[str, str] = {}
        self.arrays: dict[str, list[Word]] = {}
        self.files: list[Path] = []
        self.line = 0
        self.condition = ""
        self.read(path)
        self.command = [Word(word.text.replace(_DOLLAR, "$"), word.place) for word in self.command]

    def mark(self, reason: str) -> str:
        if reason not in self.reasons:
            self.reasons.append(reason)
        return chr(0xE000 + self.reasons.index(reason))

    def why(self, text: str) -> str:
        """Return the reasons of the marks in a value; empty where it has none."""
        return "; ".join(dict.fromkeys(self.reasons[ord(mark) - 0xE000] for mark in MARK.findall(text)))

    def place(self, further: int = 0) -> str:
        return f"{self.files[-1].name}:{self.line + further}"

    def note(self, text: str, place: str = "") -> None:
        self.notes.append(f"{place or self.place()}: {' '.join(text.split())}")

    # ------------------------------------------------------------------------------------------------ bash is read

    def read(self, path: Path) -> None:
        line, depth = self.line, 0
        self.files.append(path)
        text = re.sub("[\ue000-\uf8ff]", "", path.read_text(encoding="utf-8"))
        text = _CAT.sub(lambda cat: '"' + re.sub(r'([\\"])', r"\\\1", cat[2]) + cat[3] + '"', text)
        text = _HEREDOC.sub(lambda match: "\n" * match[0].count("\n"), text)
        text = _COMMENT.sub(lambda match: match[1] or "", text)
        text = _LAYERS.sub(lambda m: "\n" * m[0].count("\n") + f"{m[5]}=$(layers ${m['dense']} ${m['all']})", text)
        for match in _STATEMENT.finditer(text):
            self.line = text.count("\n", 0, match.start() + len(match[0]) - len(match[0].lstrip())) + 1
            statement = re.sub(r"^((then|else|do|\{)\s+)+", "", match[0].strip())
            first = re.split(r"\s", statement, maxsplit=1)[0]
            if first in OPENING or re.match(r"(function )?\w+\s*\(\)", statement):
                depth += first != "elif"
                self.condition = statement
            elif first in ("fi", "done", "esac", "}"):
                depth = max(depth - 1, 0)
            elif statement:
                self.statement(statement, conditional=depth > 0)
        self.files.pop()
        self.line = line

    def statement(self, text: str, conditional: bool) -> None:
        if array := _ARRAY.fullmatch(text):
            name, more, words = array[1], array[2], self.words(array[3])
            if not conditional:
                self.arrays[name] = self.arrays.get(name, []) + words if more else words
            elif words:
                flags = " ".join(word.text for word in words if word.text.startswith("--"))
                self.note(f"{flags or name} depends on a condition: write it by hand where it holds")
            return
        try:
            words = self.words(text)
        except ValueError:  # a quotation that does not end
            self.note("this cannot be read, and is left out")
            return
        conditional = conditional or any(word.text in ("&&", "||") for word in words)
        while words and (words[0].text in ("export", "declare", "local", "readonly") or "=" in words[0].text):
            name, equals, value = words.pop(0).text.partition("=")
            if equals and name.removesuffix("+").isidentifier():
                before = self.variables.get(name[:-1], "") * name.endswith("+")
                self.assign(name.removesuffix("+"), before + value, conditional)
        trainer = next((at for at, word in enumerate(words) if os.path.basename(word.text) in TRAINERS), None)
        if len(words) > 1 and words[0].text in ("source", "."):
            self.source(words[1].text)
        elif trainer and any("python" in word.text for word in words[:trainer]):
            self.command, self.start = words, trainer
        elif _WHOLE_ARRAY.match(text.lstrip('"')):
            self.note("these words belong to no command: the line before ends without a backslash")
        elif conditional and (adds := re.search(r"(\w+)\+?=\(", text)):
            self.note(f"{adds[1]} depends on a condition: write its flags by hand where it holds")

    def assign(self, name: str, value: str, conditional: bool) -> None:
        before = self.variables.get(name, "")
        known = before != "" and not MARK.search(before)
        if conditional and not known and re.search(rf"-z \"?\$\{{?{name}\b", self.condition):
            self.note(f"{name} is taken to be {value}, which it is where nothing else sets it")
        elif conditional and before != value:
            value = self.mark(f"{name} depends on a condition at {self.place()}")
        self.variables[name] = value

    def source(self, name: str) -> None:
        """Read a sourced file; of one that is not here, that of the script's own checkout."""
        tried = [Path(name)]
        tried += [above / "scripts/models" / tried[0].name for above in self.files[0].absolute().parents]
        found = None if MARK.search(name) else next((file for file in tried if file.is_file()), None)
        if found is None:
            self.note(f"{self.why(name) or f'{name} is not here'}: write by hand what it sets")
        elif found not in self.files:
            if found != tried[0]:
                self.note(f"{name} is not here, and {found} was read in its place")
            self.read(found)

    def words(self, text: str) -> list[Word]:
        """Return the words of a statement, those of an array for `${NAME[@]}`. Raises ValueError."""
        stream = io.StringIO(self.expanded(text.replace("\\\n", " \n")))
        lexer = shlex.shlex(stream, posix=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words: list[Word] = []
        for token in iter(lexer.get_token, None):
            ended = stream.getvalue()[: stream.tell()].endswith("\n") and "\n" not in token
            array = _WHOLE_ARRAY.fullmatch(token)
            words += self.arrays.get(array[1], []) if array else [Word(token, self.place(lexer.lineno - 1 - ended))]
        return words

    def expanded(self, text: str) -> str:
        """Return the text with values in the place of variables and substitutions, its quotes as they are."""
        text = re.sub(_QUOTED, lambda match: match[0].replace("$", _DOLLAR) if match[0][0] in "\\'" else match[0], text)
        text = text.replace("\\$", _DOLLAR).replace("\\" + _DOLLAR, _DOLLAR)
        text = _ARRAY_OR_NONE.sub(r"${\1[@]}", text)
        while match := _INNERMOST.search(text):
            if match["number"] is not None:
                value = self.number(match["number"])
            elif match["command"] is not None:
                value = self.output(match["command"])
            elif match["backquoted"] is not None:
                value = self.mark("it is the output of a command")
            else:
                value = self.parameter(match["parameter"] or match["name"])
            text = text[: match.start()] + re.sub(r'([\\"])', r"\\\1", value.replace("\n", " ")) + text[match.end() :]
        return re.sub(r"\$\(\S*", lambda _: self.mark("it is the output of a command"), text)

    def parameter(self, text: str) -> str:
        """Return the value of NAME, `NAME:-default` or this file's name."""
        if text in ("BASH_SOURCE[0]", "BASH_SOURCE", "0"):
            return str(self.files[-1].absolute())
        match = re.fullmatch(r"(\w+)(?::?[-=](.*))?", text, re.DOTALL)
        if match is None:
            return "" if text in "@*" else self.mark(f"${{{text.split(':')[0]}}} cannot be read")
        name, default = match.groups()
        if is_secret(name):
            return self.mark(f"{name} is a secret: set it in the cluster's environment")
        if self.variables.get(name) or (name in self.variables and default is None):
            return self.variables[name]
        if default is None:
            return self.mark(f"{name} is not set in the script")
        return " ".join(shlex.split(default.replace('\\"', '"')))

    def output(self, text: str) -> str:
        """Return the output of a command that its words alone decide, such as $(dirname FILE)."""
        try:
            words = shlex.split(re.sub(r"[&12]?>\s*/dev/null|2>&1|\s--\s", " ", text.replace('\\"', '"')))
        except ValueError:
            words = []
        match [*map(str, words)]:
            case ["dirname" | "basename" as part, path] if not MARK.search(path):
                return str(getattr(os.path, part)(path))
            case ["cd", path, "&&", "pwd"] if not MARK.search(path):
                return os.path.abspath(path)
            case ["seq", *numbers] if len(numbers) == 3 and all(re.fullmatch(r"[1-9]\d{0,3}", n) for n in numbers):
                first, step, last = map(int, numbers)
                return " ".join(map(str, range(first, last + 1, step)))
            case ["layers", dense, layers] if (dense + layers).isdigit():
                return f"[{','.join(str(int(layer >= int(dense))) for layer in range(int(layers)))}]"
        return self.mark(f"$({(words or ['?'])[0]} ...) is the output of a command")

    def number(self, text: str) -> str:
        """Return the value of a sum, difference, product or quotient of whole numbers."""

        def calculated(node: ast.expr) -> int:
            if isinstance(node, ast.BinOp):
                return int(_OPERATORS[type(node.op)](calculated(node.left), calculated(node.right)))
            return int(ast.literal_eval(node))

        text = re.sub(r"[A-Za-z_]\w*", lambda name: self.parameter(name[0]), text)
        if marks := MARK.findall(text):
            return marks[0]
        try:
            return str(calculated(ast.parse(text.strip(), mode="eval").body))
        except (SyntaxError, KeyError, ValueError, TypeError, ZeroDivisionError):
            return self.mark(f"$(({text})) cannot be read")

    # ------------------------------------------------------------------------------------------- flags are asked after

    def can_read(self, name: str, value: str, place: str, key: str, where: str = "") -> bool:
        """Return whether a value can be carried over; what cannot be is noted. key: the setting that it is for."""
        if secret_names({name.removeprefix("--"): value}):
            self.note(f"{name} is a secret: set it in the cluster's environment", place)
        elif MARK.search(value):
            shown, why = MARK.sub("...", value), self.why(value)
            self.note(f"{name} {shown}: {why}: set {key} by hand{where}", place)
        else:
            return True
        return False

    def word(self, name: str) -> str:
        return " ".join(self.flags[name].words) if name in self.flags else ""

    def whole(self, name: str) -> int:
        """Return the value of a flag that is a whole number, 0 for any other."""
        return int(self.word(name)) if self.word(name).isdigit() else 0


def from_script(path: Path) -> tuple[str, list[str]]:
    """Return a run's YAML and what is to be written by hand, a line each with the script's line.

    Raises:
        ConfigError: there is no such file, or nothing in it starts slime.
    """
    try:
        script = Script(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError([f"{path}: {error}"]) from None
    if script.start is None:
        none = f"{path}: nothing in it starts `python3 {TRAINERS[0]}` or `python3 {TRAINERS[1]}` of slime"
        raise ConfigError([none, *script.notes])
    trainer = script.command[script.start]
    _take_flags(script, script.command[script.start + 1 :])
    absent = {*DEFAULTS, "sequence-parallel", "attention-backend"} - AS_SLIMES - script.flags.keys()
    _order(script, trainer)
    _method(script)
    for word, following in itertools.pairwise(script.command[: script.start + 1]):
        option, equals, text = word.text.partition("=")
        if option == "--runtime-env-json":
            _environment(script, text if equals else following.text, word.place)
    _slimes_own(script)
    script.settings |= {f"slime.{name}": (False, "") for name in sorted(absent)}
    script.notes.sort(key=lambda note: int((re.findall(r":(\d+): ", note) or [0])[0]))
    return _text(path, script), script.notes


def _take_flags(script: Script, words: Sequence[Word]) -> None:
    """Put the flags that can be read. A word that cannot, where no flag takes it, may be flags itself."""
    known = recorded_flags().by_name
    flags: dict[str, Given] = {}
    name, most = "", 0
    for word in words:
        if re.fullmatch(r"\||&|[012&]?>.*", word.text):
            break  # what follows says where the output goes
        if word.text.startswith("--"):
            name, equals, value = word.text[2:].partition("=")
            flag = known.get(f"--{name}", Flag(f"--{name}"))
            name = flag.name[2:]
            most = flag.values if isinstance(flag.values, int) else len(words)
            before = flags[name].words if name in flags and flag.repeatable else []
            flags[name] = Given([*before, *([value] if equals else [])], word.place)
        elif MARK.fullmatch(word.text) and (not name or len(flags[name].words) >= most):
            script.note(f"{script.why(word.text)}: write its flags by hand", word.place)
        elif name:
            flags[name].words.append(word.text)
    for name, given in flags.items():
        key = OURS[name][0] if name in OURS else GOVERNS.get(name, f"slime.{name}")
        if script.can_read(f"--{name}", " ".join(given.words), given.place, key):
            script.flags[name] = given


def _order(script: Script, trainer: Word) -> None:
    """Put the order of generation and training, and the GPUs of each."""
    flags, settings = script.flags, script.settings
    lag = int(trainer.text.endswith("train_async.py"))
    settings["pipeline.lag"] = lag, trainer.place
    if not lag:
        flags.pop("update-weights-interval", None)
    if "fully_async_rollout" in script.word("rollout-function-path"):
        place = flags.pop("rollout-function-path").place
        settings["pipeline.mode"] = "streaming", place
        script.note("slime bounds no staleness here, and a run here does: see pipeline.max_staleness", place)
    batch = script.whole("global-batch-size")
    responses = script.whole("rollout-batch-size") * script.whole("n-samples-per-prompt")
    if batch and responses:
        settings[STEPS] = max(responses // batch, 1), flags.pop("global-batch-size").place
    if "num-steps-per-rollout" in flags:
        flags.pop("global-batch-size", None)
    if colocate := flags.pop("colocate", None):
        divide = "slime.actor-num-gpus-per-node and slime.rollout-num-gpus"
        own = f"training and generation have GPUs of their own here, as many again: divide them by {divide}"
        script.note(f"--colocate: {own}", colocate.place)
    if colocate or "rollout-num-gpus" not in flags:
        gpus = (script.whole("actor-num-nodes") or 1) * (script.whole("actor-num-gpus-per-node") or 8)
        flags["rollout-num-gpus"] = Given([str(gpus)], (colocate or trainer).place)
    if script.word("load").rstrip("/") == script.word("save").rstrip("/"):
        flags.pop("load", None)


def _method(script: Script) -> None:
    """Put what ours governs; the objective is slime's unless the script says otherwise."""
    flags, settings = script.flags, script.settings
    if (base := script.word("advantage-estimator")) not in ("", "grpo", "gspo"):
        script.note(f"--advantage-estimator {base}: set method.base", flags.pop("advantage-estimator").place)
    settings |= {"method.base": ("grpo", ""), "method.denominator": ("trainer", ""), "loss.kl_coef": (0, "")}
    if "custom-tis-function-path" in flags:
        flags.pop("use-tis", None)
    for switch, value in (("use-tis", "tis-clip"), ("use-opsm", "opsm-delta"), ("use-kl-loss", "kl-loss-coef")):
        if switch not in flags:
            flags.pop(value, None)
        elif value in flags and switch != "use-kl-loss":
            flags.pop(switch)  # what has settings is on
    kind, used = flags.pop("kl-loss-type", None), flags.pop("use-kl-loss", None)
    words = " ".join(kind.words) if kind else "k1, which is slime's default"
    if used and script.word("kl-loss-coef").strip("0.") and words not in ("low_var_kl", "k3"):
        script.note(f"--kl-loss-type {words}: here it is always low_var_kl", (kind or used).place)
    if not script.word("kl-coef").strip("0."):
        flags.pop("kl-coef", None)
    if "seed" not in flags and "rollout-seed" in flags:
        flags["seed"] = flags.pop("rollout-seed")
    if "eps-clip" in flags:
        flags.setdefault("eps-clip-high", flags["eps-clip"])
    for name in [name for name in flags if name in OURS]:
        given = flags.pop(name)
        key, value = OURS[name]
        settings[key] = _value(name, given) if value is None else value, given.place


def _environment(script: Script, text: str, place: str) -> None:
    """Put the job's environment, without secrets and what every run here has."""
    try:
        others = json.loads(text)
        variables = {str(name): str(value) for name, value in others.pop("env_vars", {}).items()}
    except (ValueError, AttributeError, TypeError):
        script.note("the job's environment cannot be read: write it by hand below cluster.env", place)
        return
    if others:
        script.note(f"runtime environment: {', '.join(others)} left out: install it where the cluster's Ray is", place)
    for name, value in variables.items():
        key = "cluster.python_path" if name == "PYTHONPATH" else f"cluster.env.{name}"
        if not script.can_read(name, value, place, key, " where it is needed"):
            continue
        if name == "PYTHONPATH":
            folders = [folder for folder in value.split(":") if folder]
            if megatron := next((folder for folder in folders if "megatron" in folder.lower()), None):
                folders.remove(megatron)
                script.settings["cluster.megatron_dir"] = megatron, place
            if folders:
                script.settings[key] = folders, place
        elif (name, value) not in (("CUDA_DEVICE_MAX_CONNECTIONS", "1"), ("NCCL_NVLS_ENABLE", "1")):
            script.settings[key] = value, place


def _slimes_own(script: Script) -> None:
    """Put every other flag below slime, if it can stand there."""
    for name, given in script.flags.items():
        flag, value = f"--{name} {' '.join(given.words)}".strip(), _value(name, given)
        if name in REFUSED:
            script.note(f"{flag} is left out: {REFUSED[name]}", given.place)
        elif name in GOVERNS:
            script.note(f"{flag} follows from {GOVERNS[name]} here: set that", given.place)
        else:
            try:
                SlimeConfig(slime={name: value})
                script.settings[f"slime.{name}"] = value, given.place
            except ValidationError as error:
                message = error.errors()[0]["msg"].removeprefix("Value error, ")
                script.note(f"{flag}: {message}: set slime.{name} by hand", given.place)


def _value(name: str, given: Given) -> Any:
    """Return the value of a flag: numbers where slime's parser takes numbers, a list where it takes several."""
    flag = recorded_flags().by_name.get(f"--{name}", Flag(name))
    try:
        values = [{"int": int, "float": float}.get(flag.type or "", str)(word) for word in given.words]
    except ValueError:
        values = list(given.words)
    many = len(values) > 1 or flag.values not in (0, 1, "?")
    return values if many else values[0] if values else True


def _yaml(value: Any) -> str:
    """Return a value in YAML on one line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    if isinstance(value, float) and parse_value(f"{value:g}") == value:
        return f"{value:g}".replace("e-0", "e-")
    return str(yaml.safe_dump([value], default_flow_style=True, width=10**9, allow_unicode=True)).strip()[1:-1]


def _text(path: Path, script: Script) -> str:
    """Return the file: what to write by hand, and each setting with the script's line."""
    lines = [
        f"# The run that {path.name} starts, as `sat-slime init from-script` reads it. It trains by the script's own",
        "# objective: for SAT add `sat: true` below method, with `denominator: rollout`. What is false without a line",
        "# number is not in the script, and a run here has it by default.",
    ]
    if notes := script.notes:
        lines += ["#", "# By hand:", *(f"# - {note}" for note in notes)]
    lines += ["runtime: slime", f"name: {re.sub(r'[^A-Za-z0-9._-]+', '-', path.stem).lstrip('._-') or 'run'}"]
    tree: dict[str, Any] = {"method": {}, "loss": {}, "pipeline": {}, "cluster": {}, "slime": {}}
    for key, entry in script.settings.items():
        *sections, last = key.split(".", 1) if key.startswith("slime.") else key.split(".")
        below = tree
        for section in sections:
            below = below.setdefault(section, {})
        below[last] = entry

    def write(tree: Mapping[str, Any], indent: str) -> None:
        for key, entry in tree.items():
            if isinstance(entry, dict):
                lines.extend([*([] if indent else [""]), f"{indent}{key}:"])
                write(entry, indent + "  ")
            else:
                value, place = entry
                lines.append(f"{indent}{key}: {_yaml(value)}" + (f"  # {place}" if place else ""))

    write({section: below for section, below in tree.items() if below}, "")
    return "\n".join(lines) + "\n"
